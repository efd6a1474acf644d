"""Use cases: one file, one public function."""
