"""Conformance checks of algorithms and audits of privacy claims."""
