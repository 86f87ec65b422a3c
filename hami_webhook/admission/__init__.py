"""AdmissionReview in, AdmissionResponse out: normalise, validate, policy. Pure; knows no cluster and no quota."""
