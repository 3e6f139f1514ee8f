//! The two clocks: the machine's, and one that only moves when it is told to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use specquant_core::Clock;

/// The machine's monotonic clock.
pub struct Wall {
    start: Instant,
}

impl Wall {
    /// Starts now.
    pub fn start() -> Wall {
        Wall { start: Instant::now() }
    }
}

impl Clock for Wall {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn wait_until(&self, at: u64) {
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(self.now())));
    }
}

/// Simulated time: waiting takes none of the caller's.
#[derive(Default)]
pub struct Virtual {
    now: AtomicU64,
}

impl Virtual {
    /// Lets this many nanoseconds pass.
    pub fn advance(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Clock for Virtual {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn wait_until(&self, at: u64) {
        self.now.fetch_max(at, Ordering::Relaxed);
    }
}
