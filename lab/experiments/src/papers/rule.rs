//! `Rule`: a statement of a paper, and how ours is found in the results of a repetition.
//!
//! A rule whose part was not run becomes a check that is listed as not there. Numbers count by the
//! list's tolerance of 25 % unless a rule says itself whether it holds.

use crate::page::{Check, CheckKind, Quantity, Verdict};

/// How far quantitative checks may be off.
pub(crate) const TOLERANCE: f64 = 0.25;

/// A check: its id, how it counts, what the paper says, and what works out ours.
pub(crate) struct Rule<R> {
    pub(crate) id: &'static str,
    pub(crate) kind: CheckKind,
    pub(crate) paper: (&'static str, &'static [f64]),
    /// Our words and numbers, whether it holds (None: by tolerance), and a note.
    pub(crate) ours: fn(&R) -> Option<Finding>,
}

/// What a rule found.
pub(crate) struct Finding {
    text: String,
    numbers: Vec<f64>,
    holds: Option<Verdict>,
    note: String,
}

impl Finding {
    pub(crate) fn new(text: String, numbers: Vec<f64>) -> Finding {
        Finding { text, numbers, holds: None, note: String::new() }
    }

    pub(crate) fn holds(self, holds: impl Into<Verdict>) -> Finding {
        Finding { holds: Some(holds.into()), ..self }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Finding {
        Finding { note: note.into(), ..self }
    }
}

impl<R> Rule<R> {
    /// The check that it makes of these results; `missing` is what is said of one without any.
    pub(crate) fn check(&self, results: &R, missing: &str) -> Check {
        let paper = Quantity::new(self.paper.0, self.paper.1);
        let Some(found) = (self.ours)(results) else {
            return Check::not_yet(self.id, self.kind, paper).with_note(missing);
        };
        let ours = Quantity::new(found.text, found.numbers);
        let check = match found.holds {
            None => Check::within(self.id, paper, ours, TOLERANCE),
            Some(holds) => Check::new(self.id, self.kind, (paper, ours), holds),
        };
        check.with_note(found.note)
    }
}
