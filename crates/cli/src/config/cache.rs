//! `[volume.cache]`: the settings of a cache over a volume.
//!
//! The keys and their words are millrace-console's. Called by sections.rs. Pure.

use millrace::CacheConfig;
use millrace_console::cache::KEYS;

use super::document::Section;
use super::problem::Problems;

/// Takes the table out of a volume's section.
pub fn read(volume: &mut Section<'_>, problems: &mut Problems) -> Option<CacheConfig> {
    let mut section = volume.table("cache", problems)?;
    let (mut config, before) = (CacheConfig::default(), problems.count());
    for (key, read) in KEYS {
        section.word(key, problems, |text| read(&mut config, text));
    }
    let line = section.line();
    section.finish(problems);
    if problems.count() == before
        && let Err(text) = config.validate()
    {
        problems.add(line, format!("cache: {text}"));
    }
    Some(config)
}
