"""The packages that a report needs beyond those of Calibrant itself."""

from importlib import import_module


def require_report_packages() -> None:
    """Raise ``ModuleNotFoundError`` with the package to install, if a report cannot be made.

    Example:
        >>> from calibrant import report
        >>> report.require_report_packages()
    """
    for package in ("jinja2", "matplotlib"):
        try:
            import_module(package)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"a report needs {package}: pip install 'calibrant[report]'", name=package
            ) from error
