"""Tests of charging run in virtual time, as those of quotas do."""

from quota.conftest import pytest_pyfunc_call as pytest_pyfunc_call
