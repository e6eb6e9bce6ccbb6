//! What is left in the tables.
