//! Time as a value, so that the same loop runs on the wall clock and in a simulation.

/// Nanoseconds since some start.
pub trait Clock: Send + Sync {
    /// Nanoseconds from the start until now.
    fn now(&self) -> u64;

    /// Returns once `now() >= at`.
    fn wait_until(&self, at: u64);
}
