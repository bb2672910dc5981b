//! Runs one execution: the threads of a model as coroutines of the exploring thread.
//!
//! Called by explorer.rs with a prepared session. Coroutines are resumed in the order that the
//! session decides. After a failure the other coroutines are abandoned: their stacks are reused and
//! everything that they own is leaked, because destructors of unfinished work could panic. A panic
//! of a model's thread unwinds as usual and becomes the failure. Stacks are pooled, so that
//! starting a thread takes nanoseconds.
#![allow(unsafe_code)]

use std::boxed::Box;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::string::ToString;
use std::sync::Once;
use std::vec::Vec;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use super::session::{self, NOBODY, ThreadYielder, UnstartedThread};

/// Stack size of a thread. Pages that are not used cost nothing.
const STACK_BYTES: usize = 256 * 1024;

type ThreadCoroutine = Coroutine<(), (), (), DefaultStack>;

#[derive(Default)]
pub(super) struct CoroutinePool {
    running: Vec<ThreadCoroutine>,
    stacks: Vec<DefaultStack>,
}

impl CoroutinePool {
    pub(super) fn execute(&mut self, body: &dyn Fn()) {
        let main = self.coroutine(body);
        self.running.push(main);
        loop {
            let (next, failed) = session::with(|s| (s.current, s.failure.is_some()));
            if failed || next == NOBODY {
                break;
            }
            while self.running.len() <= next {
                // Creates the coroutines of all threads up to number `next`, because `running` is
                // indexed by thread number.
                let index = self.running.len() - 1;
                let UnstartedThread(thread) = session::with(|s| {
                    core::mem::replace(&mut s.started[index], UnstartedThread(Box::new(|| ())))
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
                // SAFETY: the execution is over, so nothing refers to data on this stack.
                unsafe { coroutine.force_reset() };
            }
            self.stacks.push(coroutine.into_stack());
        }
        // Leak the closures of threads that never ran, because their destructors could panic.
        session::with(|s| s.started.drain(..).for_each(core::mem::forget));
    }

    fn coroutine(&mut self, body: impl FnOnce()) -> ThreadCoroutine {
        let stack = self.stacks.pop().unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("the system must have memory for a stack")
        });
        let run = move |turns: &ThreadYielder, ()| {
            session::with(|s| s.begin(turns));
            // A panic ends the execution. The panic hook has already recorded the message.
            let _ = catch_unwind(AssertUnwindSafe(body));
            session::with(|s| s.end());
        };
        // SAFETY: the borrows of `body` outlive `execute`, which ends or resets every coroutine.
        unsafe { Coroutine::with_stack_unchecked(stack, run) }
    }
}

/// Installs a panic hook that records panics of models as failures instead of printing them.
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

/// Records the first panic of a model. Returns false if the panic message must be printed. This is
/// the case outside a model, and for a second panic, which aborts the process.
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
