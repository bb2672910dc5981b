//! docs/configuration.md against the parser: keys, limits, defaults and examples.
//!
//! Tests only. Every key of a section or driver stands in the document, and the other way round;
//! what the parser knows is taken from its own messages about unknown keys, so that nobody keeps a
//! list for this.

use std::collections::BTreeSet;
use std::path::Path;

use super::load;

const REFERENCE: &str = include_str!("../../../../docs/configuration.md");

type Keys = BTreeSet<String>;

/// The keys of a section of the document, by its heading: the first column of its tables.
fn documented(heading: &str) -> Keys {
    let start = REFERENCE.find(&format!("\n{heading}\n")).expect(heading) + 1;
    let section = &REFERENCE[start + heading.len()..];
    let section = section.split("\n#").next().unwrap_or(section);
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let keys = rows.flat_map(|row| {
        let first = row.trim_start_matches('|').split('|').next().unwrap_or("");
        first.split(", ").map(|key| key.trim().trim_matches('`').to_owned()).collect::<Vec<_>>()
    });
    let list: Vec<String> = keys.collect();
    let set: Keys = list.iter().cloned().collect();
    assert_eq!(set.len(), list.len(), "{heading}: a key stands there twice");
    set
}

/// The keys that the parser knows in a section with this beginning.
fn known(section: &str) -> Keys {
    let text = format!("{section}\nno-such-key = 1\n");
    let error = load("m.toml", &text, Path::new("")).expect_err("no such key").to_string();
    let line = error.lines().find(|line| line.contains("no-such-key")).expect(&error);
    let list = line.split_once("(known: ").and_then(|(_, rest)| rest.strip_suffix(')'));
    list.expect(line).split(", ").map(str::to_owned).collect()
}

#[test]
fn the_keys_of_every_section_are_those_of_the_document() {
    for section in
        ["[server]", "[[controller]]", "[[volume]]", "[[export]]", "[[group]]", "[[listener]]"]
    {
        assert_eq!(documented(&format!("## `{section}`")), known(section), "{section}");
    }
    // With `spec` the keys of a driver are inside it.
    let drive = known("[[drive]]\nspec = \"null\"");
    assert_eq!(documented("## `[[drive]]`"), drive);
    let tls = known("[server.tls]");
    assert_eq!(documented("### `tls`"), tls);
    let cost = known("[[drive]]\nname = \"d\"\nspec = \"null\"\n[drive.cost]");
    assert_eq!(documented("### `cost`"), cost);
    let files = known("[[export]]\ndirectory = \"d\"\nnbd = \"unix:s\"\n[export.files]");
    assert_eq!(documented("### `files`"), files);
    let cache = known("[[volume]]\nname = \"v\"\ndrives = [\"d\"]\n[volume.cache]");
    assert_eq!(documented("### `cache`"), cache);
}

#[test]
fn the_keys_of_every_driver_are_those_of_the_document() {
    for driver in millrace_drives::drivers() {
        let keys = millrace_drives::known_keys(driver).unwrap();
        let keys: Keys = keys.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(documented(&format!("### `{driver}`")), keys, "{driver}");
    }
}

#[test]
fn the_examples_of_the_document_are_in_order() {
    let examples: Vec<&str> = REFERENCE.split("```toml\n").skip(1).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        let text = example.split("```").next().unwrap();
        if let Err(problems) = load("example", text, Path::new("")) {
            panic!("{problems}\n{text}");
        }
    }
}

/// The `default` of a key, as the document has it.
fn default_of(heading: &str, key: &str) -> String {
    let start = REFERENCE.find(&format!("\n{heading}\n")).expect(heading) + 1;
    let row = format!("\n| `{key}` | ");
    let rest = &REFERENCE[start..];
    let at = rest.find(&row).expect(key) + row.len();
    let column = rest[at..].split(" | ").nth(1).expect("a third column");
    column.trim_matches('`').to_owned()
}

#[test]
fn numbers_that_are_defaults_are_those_of_the_program() {
    use millrace_drives::size_text;
    let server = millrace_exports::nbd::ServerConfig::default();
    let of = |key| default_of("## `[server]`", key);
    assert_eq!(of("connections-max"), server.connections_max.to_string());
    assert_eq!(of("memory-max"), size_text(server.memory_max_bytes));
    assert_eq!(
        of("handshake-timeout"),
        format!("{}s", server.handshake_timeout_ns / 1_000_000_000)
    );
    let timeout_ns = millrace::DriveOptions::default().timeout_ns;
    let of = |key| default_of("## `[[drive]]`", key);
    assert_eq!(of("timeout"), format!("{}s", timeout_ns / 1_000_000_000));
    let serving = millrace_block::ServingConfig::default();
    let of = |key| default_of("## `[[volume]]`", key);
    assert_eq!(of("plug-high"), serving.plug_high.to_string());
    assert_eq!(of("plug-low"), serving.plug_low.to_string());
    assert_eq!(of("pressure-high"), serving.pressure_high.to_string());
    assert_eq!(of("pressure-low"), serving.pressure_low.to_string());
    assert_eq!(of("chunk"), size_text(u64::from(millrace::CHUNK_SECTORS) << 9));
    let cache = millrace::CacheConfig::default();
    let of = |key| default_of("### `cache`", key);
    assert_eq!(of("size"), size_text(cache.size_bytes));
    assert_eq!(of("read-ahead"), size_text(cache.read_ahead_bytes));
    assert_eq!(of("dirty-age"), format!("{}s", cache.dirty_age_ns / 1_000_000_000));
    assert_eq!(cache.dirty_max(), cache.size_bytes / 2);
    let file = millrace_drives::FileConfig::default();
    assert_eq!(default_of("### `file`", "depth"), file.depth.to_string());
    let ram = millrace_drives::RamConfig::default();
    assert_eq!(default_of("### `ram`", "depth"), ram.depth.to_string());
    let null = millrace_drives::NullDriver::default();
    assert_eq!(default_of("### `null`", "size"), size_text(null.size_bytes));
    assert_eq!(default_of("### `null`", "depth"), null.depth.to_string());
}

#[test]
fn limits_of_numbers_and_times_are_those_of_the_program() {
    let base = "[[drive]]\nname = \"d\"\nspec = \"null\"\n[[export]]\nvolume = \"v\"\n\
                nbd = \"unix:s\"\nvhost-user-blk = \"unix:m\"\nEXPORT\n[[volume]]\nname = \"v\"\n\
                drives = [\"d\"]\nVOLUME\n[server]\nSERVER\n";
    let ok = |section: &str, key: &str, value: &str| {
        let line = format!("{key} = \"{value}\"");
        let text = ["EXPORT", "VOLUME", "SERVER"].iter().fold(base.to_owned(), |text, one| {
            text.replace(one, if *one == section { &line } else { "" })
        });
        load("m.toml", &text, Path::new("")).is_ok()
    };
    // The least and the most that the document states, and what is beyond.
    let cases = [
        ("SERVER", "threads", "1", "1024", "1025"),
        ("SERVER", "connections-max", "1", "1048576", "1048577"),
        ("SERVER", "memory-max", "64m", "1t", "65535k"),
        ("SERVER", "handshake-timeout", "1ms", "1h", "3601s"),
        ("SERVER", "spin", "0", "1s", "1001ms"),
        ("VOLUME", "queue-depth", "1", "65536", "65537"),
        ("VOLUME", "timeout", "0", "24h", "1441m"),
        ("VOLUME", "chunk", "4k", "2g", "4g"),
        ("VOLUME", "plug-high", "16", "65536", "65537"),
        ("VOLUME", "pressure-high", "128", "65536", "65537"),
        ("EXPORT", "queues", "1", "256", "257"),
        ("EXPORT", "threads", "1", "256", "257"),
        ("EXPORT", "poll-max", "0", "1s", "1001ms"),
        ("EXPORT", "batch-wait", "0", "1s", "18446744073s"),
    ];
    for (section, key, least, most, beyond) in cases {
        let accepted = [least, most, beyond].map(|value| ok(section, key, value));
        assert_eq!(accepted, [true, true, false], "{key}");
    }
}
