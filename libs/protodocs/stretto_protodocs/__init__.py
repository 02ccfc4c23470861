"""Generators of what `proto/` holds: schemas, the AsyncAPI document, types of TypeScript, and their compatibility."""
