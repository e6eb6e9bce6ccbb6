//! Queues under load: races, long ones, torn pages, many cycles.
