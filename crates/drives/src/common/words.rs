//! Words of settings, as people write them and as reports show them, and the nearest known word.
//!
//! One table for each setting, for configuration files, the command line, specs and reports. Pure.
//! The words of [`Serving`] stand beside it, since the block layer's own messages use them.

use millrace_block::{
    Inside, Priority, SchedulerKind, Serving, Sharing, Spread, Stack, Stamp, TraceStamp,
};
use millrace_reactor::Backend;

/// Least likeness (Jaro and Winkler's, 0 to 1) of a word that is offered in the place of another.
const LIKENESS_MIN: f64 = 0.65;

/// A setting that has a word for each value.
pub trait Words: Copy + PartialEq + Sized + 'static {
    /// All values with their words.
    const WORDS: &'static [(Self, &'static str)];

    /// The value's word.
    #[must_use]
    fn word(self) -> &'static str {
        let known = Self::WORDS.iter().find(|(value, _)| *value == self);
        known.map_or("?", |(_, word)| word)
    }

    /// The value of a word; none if no value has it.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(value, _)| *value)
    }
}

impl Words for Stack {
    const WORDS: &'static [(Stack, &'static str)] =
        &[(Stack::Mq, "mq"), (Stack::Sq, "sq"), (Stack::Raw, "raw")];
}

impl Words for Inside {
    const WORDS: &'static [(Inside, &'static str)] =
        &[(Inside::ONE, "one"), (Inside::Each, "each")];
}

impl Words for SchedulerKind {
    const WORDS: &'static [(SchedulerKind, &'static str)] = SchedulerKind::NAMES;
}

impl Words for Priority {
    const WORDS: &'static [(Priority, &'static str)] = &[
        (Priority::Realtime, "realtime"),
        (Priority::BestEffort, "best-effort"),
        (Priority::Idle, "idle"),
    ];
}

impl Words for Spread {
    const WORDS: &'static [(Spread, &'static str)] =
        &[(Spread::Core, "core"), (Spread::Node, "node"), (Spread::One, "one")];
}

impl Words for Sharing {
    const WORDS: &'static [(Sharing, &'static str)] = &[
        (Sharing::Queue, "queue"),
        (Sharing::Drive, "drive"),
        (Sharing::Controller, "controller"),
    ];
}

impl Words for Serving {
    const WORDS: &'static [(Serving, &'static str)] = &Serving::NAMES;
}

impl Words for Stamp {
    const WORDS: &'static [(Stamp, &'static str)] = &[(Stamp::Batch, "batch"), (Stamp::Io, "io")];
}

impl Words for TraceStamp {
    const WORDS: &'static [(TraceStamp, &'static str)] =
        &[(TraceStamp::Batch, "batch"), (TraceStamp::Event, "event")];
}

impl Words for Backend {
    const WORDS: &'static [(Backend, &'static str)] =
        &[(Backend::Auto, "auto"), (Backend::Uring, "io_uring"), (Backend::Epoll, "epoll")];
}

/// The known word that is most like `word`, if one is like it at all.
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
    fn the_nearest_word_is_like_the_one_that_was_written_or_there_is_none() {
        assert_eq!(nearest("chnk", ["name", "chunk"]), Some("chunk"));
        assert_eq!(nearest("zzz", ["name", "chunk"]), None);
    }
}
