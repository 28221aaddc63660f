"""Serve calibrated probabilities: ``CALIBRATOR=calibrator.safetensors uvicorn app:app``."""

from os import getenv

from fastapi import Body, FastAPI, HTTPException

from calibrant import posthoc

app = FastAPI(title="Calibrated probabilities")
calibrator = posthoc.load(getenv("CALIBRATOR", "calibrator.safetensors"), kind=posthoc.Calibrator)


@app.post("/predict")
def predict(logits: list[list[float]] = Body(embed=True)) -> list[dict[str, float]]:
    """Return the calibrated probability of every class, by its label, for each list of logits."""
    try:
        rows = calibrator.predict_proba(logits)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return [dict(zip(map(str, calibrator.classes_), row, strict=True)) for row in rows.tolist()]
