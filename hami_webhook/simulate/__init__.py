"""The whole pipeline on files, with no cluster: admission, charge, placement, debit."""
