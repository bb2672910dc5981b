//! Settings of a volume's cache, for `[volume.cache]` of a configuration and for `--cache` of
//! `millrace-lab bench`, which have the same keys.
//!
//! This module owns the only table of the keys and of the functions that parse their values.

use millrace::{CacheConfig, CacheMode, Registered, unknown_word};

use crate::words::{self, nearest};

/// Name of a cache setting, and the function that parses its value into the configuration.
pub type CacheKey = (&'static str, fn(&mut CacheConfig, &str) -> Result<(), String>);

/// Returns the configuration's word for a cache mode.
pub fn mode_word(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::WriteBack => "write-back",
        CacheMode::WriteThrough => "write-through",
    }
}

/// All settings of a cache.
pub const KEYS: [CacheKey; 6] = [
    ("size", |cache, text| {
        cache.size_bytes = words::size(text)?;
        // The default read-ahead is limited to a quarter of the cache. A later `read-ahead` key
        // overrides this limit.
        cache.read_ahead_bytes = cache.read_ahead_bytes.min(cache.size_bytes / 4);
        Ok(())
    }),
    ("dirty-max", |cache, text| {
        cache.dirty_max_bytes = Some(words::size(text)?);
        Ok(())
    }),
    ("dirty-age", |cache, text| {
        cache.dirty_age = words::time(text)?;
        Ok(())
    }),
    ("read-ahead", |cache, text| {
        cache.read_ahead_bytes = words::size(text)?;
        Ok(())
    }),
    ("mode", |cache, text| {
        let modes = [CacheMode::WriteBack, CacheMode::WriteThrough];
        let known = modes.into_iter().find(|mode| mode_word(*mode) == text);
        cache.mode =
            known.ok_or_else(|| unknown_word("cache mode", text, &modes.map(mode_word)))?;
        Ok(())
    }),
    ("registered", |cache, text| {
        cache.registered = match text {
            "auto" => Registered::Auto,
            // The configuration reader passes TOML booleans as `on` and `off`.
            "true" | "on" => Registered::Always,
            "false" | "off" => Registered::Never,
            _ => return Err("write \"auto\", true or false".to_owned()),
        };
        Ok(())
    }),
];

/// Parses `SIZE` or `KEY=VALUE,...`. An error names the wrong setting and the rule it breaks.
pub fn of_text(text: &str) -> Result<CacheConfig, String> {
    let mut config = CacheConfig::default();
    let parts = text.split(',').map(|part| part.split_once('=').unwrap_or(("size", part)));
    let mut parts: Vec<(&str, &str)> = parts.collect();
    // Applies `size` first, because `size` may lower the default of `read-ahead`. If the text also
    // has the setting `read-ahead`, its value then replaces the default.
    parts.sort_by_key(|(key, _)| *key != KEYS[0].0);
    for (key, value) in parts {
        let Some((_, read)) = KEYS.iter().find(|(known, _)| *known == key) else {
            let names = KEYS.map(|(name, _)| name);
            let (all, meant) = (names.join(", "), nearest(key, names));
            return Err(format!("a cache has no setting {key}; choose from {all}{meant}"));
        };
        read(&mut config, value).map_err(|text| format!("{key}: {text}"))?;
    }
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_size_alone_or_settings_with_their_names_make_a_cache() {
        let cache = of_text("64m").unwrap();
        assert_eq!((cache.size_bytes, cache.mode), (64 << 20, CacheMode::WriteBack));
        let cache = of_text("size=64m,dirty-max=8m,dirty-age=2s,read-ahead=0,mode=write-through");
        let cache = cache.unwrap();
        assert_eq!((cache.dirty_max(), cache.dirty_age), (8 << 20, Duration::from_secs(2)));
        assert_eq!((cache.read_ahead_bytes, cache.mode), (0, CacheMode::WriteThrough));
        assert_eq!(cache.registered, Registered::Never);
        assert_eq!(of_text("64m,registered=auto").unwrap().registered, Registered::Auto);
        assert_eq!(of_text("64m,registered=true").unwrap().registered, Registered::Always);
        assert_eq!(of_text("64m,registered=false").unwrap().registered, Registered::Never);
        let wrong = of_text("registered=yes").unwrap_err();
        assert_eq!(wrong, "registered: write \"auto\", true or false");
        let wrong = of_text("size=64m,dirty-mx=8m").unwrap_err();
        assert!(wrong.ends_with("did you mean \"dirty-max\"?"), "{wrong}");
        assert_eq!(of_text("1m").unwrap().read_ahead_bytes, 256 << 10);
        let wrong = of_text("read-ahead=512k,size=1m").unwrap_err();
        assert_eq!(
            wrong,
            "read-ahead is 524288 bytes; set it to at most a quarter of the cache's size"
        );
        let wrong = of_text("4k").unwrap_err();
        assert_eq!(wrong, "size is 4096 bytes; set it between 1 MiB and 1 TiB");
    }
}
