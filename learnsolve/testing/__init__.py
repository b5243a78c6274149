"""Tests for functions of sparse matrices: are their derivatives right?"""

from learnsolve.testing.audit import audit
from learnsolve.testing.report import AuditEntry, AuditReport

__all__ = ["AuditEntry", "AuditReport", "audit"]
