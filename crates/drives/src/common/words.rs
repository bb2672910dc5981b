//! Names of the values of settings, and the known name that is nearest to a misspelt one.
//!
//! There is one table for each setting, used for configuration files, the command line, specs and
//! reports. The names of [`Serving`] are defined with that type, because messages of the block
//! layer use them.

use millrace_block::baseline::{Inside, Stack};
use millrace_block::{Priority, SchedulerKind, Serving, Sharing, Spread, Stamp, TraceStamp};
use millrace_reactor::Backend;

/// Minimum similarity (Jaro-Winkler, 0 to 1) of a name that is suggested in place of a wrong one.
const LIKENESS_MIN: f64 = 0.65;

/// A type whose values have names, for settings and reports.
pub trait Words: Copy + PartialEq + Sized + 'static {
    /// Noun for the type in error texts: `unknown NOUN "word"`.
    const NOUN: &'static str = "value";
    /// All values of the type, each with its name in settings and reports.
    const WORDS: &'static [(Self, &'static str)];

    /// Returns the name of this value in settings and reports.
    #[must_use]
    fn word(self) -> &'static str {
        let known = Self::WORDS.iter().find(|(value, _)| *value == self);
        known.map_or("?", |(_, word)| word)
    }

    /// Returns the value with this name in settings and reports, or `None` for an unknown name.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(value, _)| *value)
    }
}

impl Words for Stack {
    const NOUN: &'static str = "stack";
    const WORDS: &'static [(Stack, &'static str)] =
        &[(Stack::Mq, "mq"), (Stack::Sq, "sq"), (Stack::Raw, "raw")];
}

impl Words for Inside {
    const NOUN: &'static str = "dispatch concurrency";
    const WORDS: &'static [(Inside, &'static str)] =
        &[(Inside::ONE, "one"), (Inside::Each, "each")];
}

impl Words for SchedulerKind {
    const NOUN: &'static str = "scheduler";
    const WORDS: &'static [(SchedulerKind, &'static str)] = SchedulerKind::NAMES;
}

impl Words for Priority {
    const NOUN: &'static str = "priority";
    const WORDS: &'static [(Priority, &'static str)] = &[
        (Priority::Realtime, "realtime"),
        (Priority::BestEffort, "best-effort"),
        (Priority::Idle, "idle"),
    ];
}

impl Words for Spread {
    const NOUN: &'static str = "queue spread";
    const WORDS: &'static [(Spread, &'static str)] =
        &[(Spread::Core, "core"), (Spread::Node, "node"), (Spread::One, "one")];
}

impl Words for Sharing {
    const NOUN: &'static str = "tag sharing";
    const WORDS: &'static [(Sharing, &'static str)] = &[
        (Sharing::Queue, "queue"),
        (Sharing::Drive, "drive"),
        (Sharing::Controller, "controller"),
    ];
}

impl Words for Serving {
    const NOUN: &'static str = "serving mode";
    const WORDS: &'static [(Serving, &'static str)] = &Serving::NAMES;
}

impl Words for Stamp {
    const NOUN: &'static str = "stamp";
    const WORDS: &'static [(Stamp, &'static str)] = &[(Stamp::Batch, "batch"), (Stamp::Io, "io")];
}

impl Words for TraceStamp {
    const NOUN: &'static str = "trace stamp";
    const WORDS: &'static [(TraceStamp, &'static str)] =
        &[(TraceStamp::Batch, "batch"), (TraceStamp::Event, "event")];
}

impl Words for Backend {
    const NOUN: &'static str = "backend";
    const WORDS: &'static [(Backend, &'static str)] =
        &[(Backend::Auto, "auto"), (Backend::Uring, "io_uring"), (Backend::Epoll, "epoll")];
}

/// Returns an error text with the unknown `word`, all `known` words and the most similar one.
pub fn unknown_word(noun: &str, word: &str, known: &[&str]) -> String {
    let choices = any_of(known);
    let similar = nearest(word, known.iter().copied());
    let hint = similar.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
    format!("unknown {noun} \"{word}\"; choose {choices}{hint}")
}

/// Returns words as a list for messages: `a, b or c`.
pub(crate) fn any_of(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// Returns the known word that is most like `word`, or `None` if no known word is similar.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(word, name), name))
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_leads_back_to_its_value() {
        fn check<T: Words + std::fmt::Debug>() {
            for (value, word) in T::WORDS {
                assert_eq!((T::from_word(word), value.word()), (Some(*value), *word));
            }
            assert_eq!(T::from_word("?"), None);
        }
        check::<Stack>();
        check::<Spread>();
        check::<Sharing>();
        check::<Serving>();
        check::<Stamp>();
        check::<TraceStamp>();
        check::<Backend>();
    }

    #[test]
    fn nearest_word_is_like_one_that_was_written_or_there_is_none() {
        assert_eq!(nearest("chnk", ["name", "chunk"]), Some("chunk"));
        assert_eq!(nearest("zzz", ["name", "chunk"]), None);
    }

    #[test]
    fn unknown_word_is_answered_with_all_known_ones_and_nearest() {
        let schedulers: Vec<&str> = SchedulerKind::WORDS.iter().map(|(_, word)| *word).collect();
        let text = "unknown scheduler \"bfq\"; choose none, deadline, fair or latency";
        assert_eq!(unknown_word("scheduler", "bfq", &schedulers), text);
        let text = "unknown layout \"strip\"; choose linear or stripe; did you mean \"stripe\"?";
        assert_eq!(unknown_word("layout", "strip", &["linear", "stripe"]), text);
    }
}
