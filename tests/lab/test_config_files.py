"""Configurations written by hand, for ``calibrant train --config``."""

from pathlib import Path

from calibrant_lab.trials.configuration import configure, read_configuration


def test_settings_may_have_hyphens_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        'recipe = "digits"\nmethod = "esd"\nseed = 1\n[options]\nweight = 2\n[settings]\ncalibration-every = 2\n'
    )
    expected = configure("digits", "esd", options={"weight": 2.0}, settings={"calibration_every": 2}, seed=1)
    assert read_configuration(path) == expected


def test_what_a_file_leaves_out_is_at_its_default(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('recipe = "digits"\nmethod = "esd"\n')
    assert read_configuration(path) == configure("digits", "esd")
