//! Runs one execution: the threads of a model as coroutines of the exploring thread.
//!
//! Called by explorer.rs with a session that is ready. Coroutines are resumed in the order that the
//! session decides. After a failure the others are abandoned where they stand: their stacks are
//! used again, what they own is leaked, because destructors of half-finished work could panic.
//! A panic of the model's own thread unwinds as usual and becomes the failure. Stacks are pooled:
//! to start a thread costs some nanoseconds.
#![allow(unsafe_code)]

use std::boxed::Box;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::string::ToString;
use std::sync::Once;
use std::vec::Vec;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use super::session::{self, NOBODY, Started, Turns};

/// Bytes of a thread's stack; the pages that it does not touch cost nothing.
const STACK_BYTES: usize = 256 * 1024;

type Running = Coroutine<(), (), (), DefaultStack>;

/// Coroutines of an execution and stacks for the next.
#[derive(Default)]
pub(super) struct Pool {
    running: Vec<Running>,
    stacks: Vec<DefaultStack>,
}

impl Pool {
    /// Runs the execution that the entered session is ready for.
    pub(super) fn execute(&mut self, body: &dyn Fn()) {
        let main = self.coroutine(body);
        self.running.push(main);
        loop {
            let (next, failed) = session::with(|s| (s.current, s.failure.is_some()));
            if failed || next == NOBODY {
                break;
            }
            while self.running.len() <= next {
                // Threads start in the order of their numbers, even if they run in another.
                let index = self.running.len() - 1;
                let Started(thread) = session::with(|s| {
                    core::mem::replace(&mut s.started[index], Started(Box::new(|| ())))
                });
                let coroutine = self.coroutine(thread);
                self.running.push(coroutine);
            }
            match self.running[next].resume(()) {
                CoroutineResult::Yield(()) | CoroutineResult::Return(()) => {}
            }
        }
        for mut coroutine in self.running.drain(..) {
            if !coroutine.done() {
                // SAFETY: nothing refers to what is on its stack any more: the execution is over,
                // and memory that others could reach is on the heap.
                unsafe { coroutine.force_reset() };
            }
            self.stacks.push(coroutine.into_stack());
        }
        // Of threads that were never resumed.
        session::with(|s| s.started.drain(..).for_each(core::mem::forget));
    }

    fn coroutine(&mut self, body: impl FnOnce()) -> Running {
        let stack = self.stacks.pop().unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("the system refuses memory for a stack")
        });
        let run = move |turns: &Turns, ()| {
            session::with(|s| s.begin(turns));
            // A panic was noted by the hook, and the execution ends with it.
            let _ = catch_unwind(AssertUnwindSafe(body));
            session::with(|s| s.end());
        };
        // SAFETY: what `body` borrows outlives `execute`, which ends or resets every coroutine.
        unsafe { Coroutine::with_stack_unchecked(stack, run) }
    }
}

/// Makes panics of models their failures instead of lines on standard error.
pub(super) fn hook_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !note(info) {
                previous(info);
            }
        }));
    });
}

/// False if it is none of ours, or the second of one execution, which ends the process.
fn note(info: &PanicHookInfo<'_>) -> bool {
    session::try_with(|s| {
        let first = s.failure.is_none();
        if first {
            let text = info.to_string();
            s.note(|| text.clone());
            s.failure = Some(text);
        }
        first
    })
    .unwrap_or(false)
}
