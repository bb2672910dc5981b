//! `Simulation`: a model, a seed, and the loop that runs threads on the simulated machine until all
//! have ended.
//!
//! Called by programs; calls the scheduler whenever a coroutine suspends. Every simulated thread is
//! a coroutine on the calling system thread. Stacks are kept for the next simulation, so that a
//! short simulation costs microseconds. A simulation that fails is not unwound: the stacks of its
//! threads are abandoned (their memory leaks), because destructors of an unfinished run would wait
//! for other threads forever, and because a release build cannot unwind.
#![allow(unsafe_code)]

use core::any::Any;
use core::cell::RefCell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::vec::Vec;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::model::time::PS_PER_NS;
use crate::model::{Model, ModelError};
use crate::report::{Report, SimError};
use crate::scheduler::RunAction;
use crate::scheduler::pool::ThreadBody;
use crate::scheduler::tournament::TIME_MAX_PS;
use crate::world::{EnteredWorld, World, private, shared};

/// Size of a thread's stack. Only the pages that are used take memory.
const STACK_BYTES: usize = 256 << 10;
const STACKS_KEPT: usize = 512;

type ThreadCoroutine = Coroutine<(), (), (), DefaultStack>;

std::thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// A simulated machine that is ready to run a program.
#[derive(Debug, Clone)]
pub struct Simulation {
    model: Model,
    seed: u64,
    limit_ps: u64,
    cpu: u32,
}

impl Simulation {
    /// Creates a machine of this model. The seed determines the jitter, and the order of CPUs whose
    /// clocks are equal.
    ///
    /// # Errors
    /// Fails if the model is invalid. The error names the key.
    pub fn new(model: &Model, seed: u64) -> Result<Simulation, ModelError> {
        model.validate()?;
        Ok(Simulation { model: model.clone(), seed, limit_ps: TIME_MAX_PS, cpu: 0 })
    }

    /// Limits the virtual time to `limit_ns`, after which the simulation ends with an error. The
    /// default and maximum is 4,503 s.
    #[must_use]
    pub fn time_limit_ns(mut self, limit_ns: u64) -> Self {
        self.limit_ps = limit_ns.saturating_mul(PS_PER_NS).min(TIME_MAX_PS);
        self
    }

    /// Sets the CPU of the first thread; the default is 0.
    #[must_use]
    pub fn first_cpu(mut self, cpu: u32) -> Self {
        self.cpu = cpu;
        self
    }

    /// Runs `main` as the first thread of the machine, until `main` and all threads that it starts
    /// have ended.
    ///
    /// Equal models, seeds and programs produce identical reports in debug and release builds, if
    /// the program depends on nothing but the machine: no other clock, random state, address or
    /// thread. Results leave `main` through memory that it shares with the caller.
    ///
    /// # Errors
    /// Fails if the simulation could not end. Everything that its threads held is then leaked.
    ///
    /// # Panics
    /// Panics inside another simulation, or if the model lacks the CPU set by
    /// [`first_cpu`](Simulation::first_cpu).
    pub fn run(&self, main: impl FnOnce() + Send + 'static) -> Result<Report, SimError> {
        static EPOCH: AtomicU32 = AtomicU32::new(1);
        let epoch = EPOCH.fetch_add(1, Relaxed).max(1);
        let world = RefCell::new(World::new(&self.model, self.seed, epoch, self.limit_ps));
        // SAFETY: `entered` is dropped before `world`, at the end of this function.
        let entered = unsafe { EnteredWorld::new(&world) };
        world.borrow_mut().scheduler.add_first_thread(self.cpu as usize, Box::new(main));
        let mut fibers = ThreadCoroutines(Vec::new());
        let ended = loop {
            let next = world.borrow_mut().pick();
            match next {
                Ok(RunAction::Resume(thread)) => fibers.resume(thread),
                Ok(RunAction::Start(thread, body)) => fibers.start(thread, body),
                Ok(RunAction::Done) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        fibers.reset();
        drop(entered);
        ended.map(|()| world.borrow().report())
    }
}

struct ThreadCoroutines(Vec<Option<ThreadCoroutine>>);

impl ThreadCoroutines {
    fn start(&mut self, thread: u32, body: ThreadBody) {
        let kept = STACKS.with_borrow_mut(Vec::pop);
        let stack = kept.unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("the system must have memory for another stack")
        });
        let fiber = Coroutine::with_stack(stack, move |yielder, ()| {
            private(|world| world.scheduler.set_yielder(yielder));
            let result = catch_unwind(AssertUnwindSafe(body));
            finish(result.err());
        });
        let index = thread as usize;
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(fiber);
        self.resume(thread);
    }

    fn resume(&mut self, thread: u32) {
        let place = &mut self.0[thread as usize];
        let fiber = place.as_mut().expect("a thread is started before it is resumed");
        if let CoroutineResult::Return(()) = fiber.resume(()) {
            place.take().into_iter().for_each(keep_stack);
        }
    }

    /// Takes back the stacks of threads that have not ended, without running destructors, which
    /// could wait for other threads forever. Memory that the threads own leaks.
    fn reset(&mut self) {
        for mut fiber in self.0.drain(..).flatten() {
            // SAFETY: no coroutine runs now, and `fiber` is never resumed, so its stack is unused.
            // A thread's body is `'static`, so other threads can refer only to the body's heap
            // memory, which leaks.
            unsafe { fiber.force_reset() };
            keep_stack(fiber);
        }
    }
}

impl Drop for ThreadCoroutines {
    /// Takes back the stacks of the threads if the run loop itself panics.
    fn drop(&mut self) {
        self.reset();
    }
}

fn keep_stack(fiber: ThreadCoroutine) {
    let stack = fiber.into_stack();
    STACKS.with_borrow_mut(|stacks| {
        if stacks.len() < STACKS_KEPT {
            stacks.push(stack);
        }
    });
}

fn finish(panic: Option<Box<dyn Any + Send>>) {
    match panic {
        None => {
            shared(|world| {
                world.scheduler.me().ended.set();
                world.scheduler.end_thread();
            });
        }
        Some(payload) => {
            let message = message_of(&*payload);
            private(|world| world.fail(message));
        }
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => String::from("a panic payload that is not a string"),
    }
}
