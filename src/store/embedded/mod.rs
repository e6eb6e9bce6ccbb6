//! The embedded store: one directory, one process (redb).
