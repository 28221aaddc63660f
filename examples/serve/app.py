"""Serve calibrated probabilities: ``CALIBRATOR=calibrator.safetensors uvicorn app:app`` in this folder."""

import os

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from calibrant import posthoc

app = FastAPI(title="Calibrated probabilities")
calibrator = posthoc.load(os.environ.get("CALIBRATOR", "calibrator.safetensors"))
if not isinstance(calibrator, posthoc.Calibrator):
    raise SystemExit(f"CALIBRATOR holds a {type(calibrator).__name__}, which has no probabilities: save a calibrator")


class Batch(BaseModel):
    """Logits of some samples, a list of one number per class for each."""

    logits: list[list[float]]


@app.post("/predict")
def predict(batch: Batch) -> list[dict[str, float]]:
    """Return the calibrated probability of every class, by its label, for each sample."""
    if not batch.logits:
        return []
    if len(set(map(len, batch.logits))) > 1:
        raise HTTPException(422, "all rows of logits must have the same length, one number per class")
    try:
        rows = calibrator.predict_proba(np.asarray(batch.logits, dtype=np.float32))
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return [dict(zip(map(str, calibrator.classes_), row.tolist(), strict=True)) for row in rows]
