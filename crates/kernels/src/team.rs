//! A fixed set of worker threads that share the parts of one job at a time with the thread that asks.
//!
//! Which thread runs a part never changes a result: parts write disjoint outputs. A dispatch to spinning workers is one
//! store; a worker that sleeps is not waited for, it just finds nothing left.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};

use crate::isa::Isa;

/// Looks at the job counter before a worker sleeps: about a tenth of a millisecond, longer than the gap between two
/// operations of a forward pass and far shorter than a scheduler's slice.
const SPINS: usize = 4000;

/// Multiply-adds below which a job runs on the caller alone: the other threads would come too late to help. Tests share
/// every job, so that small shapes try the threads too.
const SMALL: usize = if cfg!(test) { 1 } else { 20_000 };

/// A handle on the workers; clones share them, and they end when the last handle is dropped.
#[derive(Clone)]
pub struct Team {
    workers: Arc<Workers>,
}

struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    isa: Isa,
    /// Set while a caller owns the job; a second caller, or a part that calls `run`, does its parts itself.
    taken: AtomicBool,
}

/// One cache line for each counter, so that claiming parts does not slow down those who finish theirs.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Parts not yet claimed; zero or less between jobs.
    unclaimed: Line<AtomicIsize>,
    /// Parts that have ended, in whatever way.
    ended: Line<AtomicUsize>,
    job: Line<UnsafeCell<Job>>,
    sleeping: Line<AtomicUsize>,
    stop: AtomicBool,
    /// What the first failing part panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    /// A borrow of the caller's closure; its lifetime ends when `run` returns.
    part: *const (dyn Fn(usize) + Sync + 'static),
    parts: usize,
}

// SAFETY: `job` is written only by the caller that owns `taken`, while no part is claimed or running, and read only
// by a thread that has claimed a part of it; `Shared::work` explains why these exclude each other. The rest is Sync.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only as described above, from whichever thread.
unsafe impl Send for Shared {}

impl Team {
    /// A team of `threads` threads, of which the caller of [`Team::run`] is one.
    ///
    /// # Errors
    /// When `threads` is 0, this CPU lacks `isa`, or the system starts no more threads.
    pub fn new(threads: usize, isa: Isa) -> Result<Team> {
        ensure!(threads > 0, "a team needs at least one thread");
        ensure!(isa.is_available(), "this CPU has no {isa}; it has {}", Isa::detect());
        let shared = Arc::new(Shared {
            unclaimed: Line(AtomicIsize::new(0)),
            ended: Line(AtomicUsize::new(0)),
            job: Line(UnsafeCell::new(Job { part: &|_: usize| {}, parts: 0 })),
            sleeping: Line(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut workers = Workers { shared, handles: Vec::new(), isa, taken: AtomicBool::new(false) };
        for index in 1..threads {
            let shared = Arc::clone(&workers.shared);
            let handle = thread::Builder::new()
                .name(format!("kernels-{index}"))
                .spawn(move || shared.serve())
                .with_context(|| format!("cannot start thread {} of {threads}", index + 1))?;
            workers.handles.push(handle);
        }
        Ok(Team { workers: Arc::new(workers) })
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.handles.len() + 1
    }

    /// The instruction-set path of every operation that this team executes; this CPU has it.
    pub fn isa(&self) -> Isa {
        self.workers.isa
    }

    /// Calls `part(0)`, .., `part(parts - 1)`, each exactly once, and returns when all have ended.
    ///
    /// `work` is the job's size in multiply-adds: a small job runs on the caller, in order, as does one that comes while
    /// the team is at another. A panic in a part is passed on when no part runs any more.
    pub fn run(&self, work: usize, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let workers = &*self.workers;
        let alone = workers.handles.is_empty() || parts < 2 || work < SMALL;
        if alone || workers.taken.swap(true, Ordering::Acquire) {
            (0..parts).for_each(part);
            return;
        }
        let outcome = workers.share(part, parts);
        workers.taken.store(false, Ordering::Release);
        if let Some(payload) = outcome {
            resume_unwind(payload);
        }
    }

    /// Calls `part` with ranges that cover `0..items`; `work` is the size of one item in multiply-adds.
    pub(crate) fn split(&self, items: usize, work: usize, part: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let parts = items.min(self.threads() * 4);
        let bound = |i: usize| i * items / parts.max(1);
        self.run(items * work, parts, &|i| part(bound(i)..bound(i + 1)));
    }
}

impl Workers {
    /// Publishes the job, takes part in it and waits for the rest; returns what a part panicked with.
    fn share(&self, part: &(dyn Fn(usize) + Sync), parts: usize) -> Option<Box<dyn Any + Send>> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used by threads that have claimed a part, and this
        // function returns only when every claimed part has ended and none is left to claim.
        let part: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(part) };
        // SAFETY: the caller owns `taken`, and the job before has ended, so that nobody reads `job`.
        unsafe { *shared.job.0.get() = Job { part, parts } };
        shared.ended.0.store(0, Ordering::Relaxed);
        // Sequential consistency with `sleeping`: either a worker on its way to sleep sees this job, or it is woken.
        shared.unclaimed.0.store(parts as isize, Ordering::SeqCst);
        if shared.sleeping.0.load(Ordering::SeqCst) > 0 {
            self.handles.iter().for_each(|handle| handle.thread().unpark());
        }
        while shared.work() {}
        let mut looks = 0;
        while shared.ended.0.load(Ordering::Acquire) < parts {
            looks += 1;
            // Where other programs compete for the cores, the thread that holds the last part may need this one's.
            if looks < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
        shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Shared {
    /// Claims one part and runs it; false if none was left.
    ///
    /// The claim comes first and the job is read after it. Whoever has claimed a part of a job keeps that job in
    /// place, because its owner waits for `ended` to reach `parts`; a late thread therefore either claims nothing or
    /// reads the job that it has claimed from, never an older one.
    fn work(&self) -> bool {
        if self.unclaimed.0.load(Ordering::Relaxed) <= 0 {
            return false;
        }
        let left = self.unclaimed.0.fetch_sub(1, Ordering::Acquire);
        if left <= 0 {
            return false;
        }
        // SAFETY: a part has been claimed, so that the owner neither writes the job nor ends the closure's borrow
        // until `ended` counts it; the acquiring claim sees the owner's write.
        let job = unsafe { *self.job.0.get() };
        let index = job.parts - left as usize;
        // SAFETY: as above; the closure is Sync, so that this thread may call it.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*job.part)(index) }));
        if let Err(payload) = outcome {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
        self.ended.0.fetch_add(1, Ordering::Release);
        true
    }

    /// A worker's life: work while there are parts, look for more for a while, then sleep.
    fn serve(&self) {
        let mut looks = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.work() {
                looks = 0;
            } else if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                looks = 0;
                self.sleeping.0.fetch_add(1, Ordering::SeqCst);
                if self.unclaimed.0.load(Ordering::SeqCst) <= 0 && !self.stop.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.sleeping.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker catches what its parts panic with, so that there is nothing to pass on.
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Team({} x {})", self.threads(), self.isa())
    }
}

/// The start of an output that the parts of a job write together, each its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Output<T>(*mut T);

// SAFETY: a pointer alone does nothing; each use of it states why its elements are that part's own.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T> Output<T> {
    pub(crate) fn new(start: *mut T) -> Output<T> {
        Output(start)
    }

    /// A method, because a closure that named the field would capture the bare pointer, which is not Sync.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::Team;
    use crate::Isa;

    fn team(threads: usize) -> Team {
        Team::new(threads, Isa::Scalar).unwrap()
    }

    #[test]
    fn every_part_runs_exactly_once_in_every_dispatch() {
        for threads in [1, 2, 3, 7] {
            let team = team(threads);
            let counts: Vec<AtomicUsize> = (0..97).map(|_| AtomicUsize::new(0)).collect();
            let mut expected = vec![0; counts.len()];
            for round in 0..3000 {
                let parts = round % 98;
                team.run(usize::MAX, parts, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                expected[..parts].iter_mut().for_each(|n| *n += 1);
                if round % 1000 == 999 {
                    // Long enough for the workers to sleep, so that the next dispatch wakes them.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            let seen: Vec<usize> = counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            assert_eq!(seen, expected, "{threads} threads");
        }
    }

    #[test]
    fn other_threads_do_take_part() {
        let team = team(2);
        let here = std::thread::current().id();
        let mut elsewhere = 0;
        for _ in 0..100 {
            let others = AtomicUsize::new(0);
            team.run(usize::MAX, 8, &|_| {
                if std::thread::current().id() != here {
                    others.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(200));
            });
            elsewhere += others.into_inner();
        }
        assert!(elsewhere > 0, "a team of two never used its second thread");
    }

    #[test]
    fn split_covers_every_item_once() {
        for (threads, items) in [(1, 5), (2, 0), (2, 1), (3, 7), (3, 1000)] {
            let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            team(threads).split(items, 1 << 20, &|range| {
                range.for_each(|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{threads} threads, {items} items");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_other_parts_and_the_team_survives() {
        for threads in [1, 3] {
            let team = team(threads);
            for failing in [0, 19] {
                let ended = AtomicUsize::new(0);
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    team.run(usize::MAX, 20, &|part| {
                        assert_ne!(part, failing, "part {part} fails");
                        ended.fetch_add(1, Ordering::Relaxed);
                    });
                }));
                let message = outcome.unwrap_err();
                let message = message.downcast_ref::<String>().unwrap();
                assert!(message.contains(&format!("part {failing} fails")), "{message}");
                let expected = if threads == 1 { failing } else { 19 };
                assert_eq!(ended.into_inner(), expected, "{threads} threads");
            }
            let after = AtomicUsize::new(0);
            team.run(usize::MAX, 50, &|_| {
                after.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(after.into_inner(), 50);
        }
    }

    #[test]
    fn a_part_may_run_the_team_and_so_may_several_callers() {
        let team = team(3);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (team, total) = (team.clone(), &total);
                scope.spawn(move || {
                    for _ in 0..200 {
                        team.run(usize::MAX, 4, &|_| {
                            team.run(usize::MAX, 5, &|_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 3 * 200 * 4 * 5);
    }

    #[test]
    fn workers_end_with_the_last_handle() {
        let team = team(3);
        let shared = std::sync::Arc::downgrade(&team.workers.shared);
        let clone = team.clone();
        drop(team);
        clone.run(usize::MAX, 10, &|_| ());
        assert!(shared.upgrade().is_some());
        drop(clone);
        // Dropping joined the threads, each of which held a reference.
        assert!(shared.upgrade().is_none());
    }

    #[test]
    fn a_team_without_threads_or_on_a_missing_path_is_refused() {
        let message = Team::new(0, Isa::Scalar).unwrap_err().to_string();
        assert_eq!(message, "a team needs at least one thread");
        for isa in Isa::ALL {
            assert_eq!(Team::new(1, isa).is_ok(), isa.is_available(), "{isa}");
        }
    }
}
