//! What every store promises, and what each one promises beyond that.

mod contract;
mod embedded;
mod world;
