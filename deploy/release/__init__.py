"""Builds a release from image archives: chart, SBOMs, provenance, checksums.

- Releases are reproducible: equal images and an equal commit give equal files.
- Documents describe the contents of the archives, not the intentions of the build.
"""
