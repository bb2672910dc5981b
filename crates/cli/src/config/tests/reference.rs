//! Tests that compare docs/configuration.md and docs/test-drives.md with the parser: keys, limits,
//! defaults and examples.
//!
//! Every key of a section or driver must be in the document, and every key in the document must
//! exist. The list of known keys comes from the parser's own messages about unknown keys.

use std::collections::BTreeSet;
use std::path::Path;

use millrace::ServeConfig;

use crate::config::{ConfigProblems, load};

const REFERENCE: &str = concat!(
    include_str!("../../../../../docs/configuration.md"),
    include_str!("../../../../../docs/test-drives.md")
);

type Keys = BTreeSet<String>;

/// One row of a table in the document.
struct DocumentRow {
    keys: Vec<String>,
    values: &'static str,
    default: &'static str,
}

/// Returns the rows of a section of the document, which is found by its heading.
fn rows(heading: &str) -> Vec<DocumentRow> {
    let start = REFERENCE.find(&format!("\n{heading}\n")).expect(heading) + 1;
    let section = &REFERENCE[start + heading.len()..];
    let section = section.split("\n#").next().unwrap_or(section);
    let row = |line: &'static str| {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, keys, values, default, ..] = columns[..] else { panic!("{line}") };
        let keys = keys.split(", ").map(|key| key.trim_matches('`').to_owned()).collect();
        DocumentRow { keys, values, default }
    };
    section.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

/// Returns the keys that a section of the document describes.
fn documented(heading: &str) -> Keys {
    let list: Vec<String> = rows(heading).into_iter().flat_map(|row| row.keys).collect();
    let set: Keys = list.iter().cloned().collect();
    assert_eq!(set.len(), list.len(), "{heading}: a key stands there twice");
    set
}

/// Returns the keys that the parser accepts in the section with this beginning.
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
    // A drive with `spec` has its driver's keys inside the spec.
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

/// A configuration with a section of each kind. A comment in each section has the document's
/// heading for it.
const WHOLE: &str = "[server]\n# ## `[server]`\n[[controller]]\nname = \"c\"\ntags = 9\n\
                     # ## `[[controller]]`\n[[group]]\nname = \"g\"\n# ## `[[group]]`\n\
                     [[drive]]\nname = \"d\"\nspec = \"null\"\n# ## `[[drive]]`\n\
                     [[drive]]\nname = \"e\"\nspec = \"null\"\n\
                     [[volume]]\nname = \"v\"\ndrives = [\"d\", \"e\"]\n# ## `[[volume]]`\n\
                     [volume.cache]\n# ### `cache`\n[[export]]\nvolume = \"v\"\ngroup = \"g\"\n\
                     vhost-user-blk = \"unix:s\"\n# ## `[[export]]`\n\
                     [[export]]\ndirectory = \"f\"\nnbd = \"unix:n\"\n\
                     [export.files]\n# ### `files`\n";
const HEADINGS: [&str; 8] = [
    "## `[server]`",
    "## `[[controller]]`",
    "## `[[group]]`",
    "## `[[drive]]`",
    "## `[[volume]]`",
    "### `cache`",
    "## `[[export]]`",
    "### `files`",
];

/// Loads the configuration with one additional key, whose value is written as in the document.
fn with(heading: &str, key: &str, value: &str) -> Result<ServeConfig, ConfigProblems> {
    let is_toml =
        value.starts_with('"') || value.starts_with("0o") || matches!(value, "true" | "false");
    let quoted = if is_toml { value.to_owned() } else { format!("\"{value}\"") };
    let place = format!("# {heading}\n");
    let text = WHOLE.replace("tags = 9\n", if key == "tags" { "" } else { "tags = 9\n" });
    let text = text.replace(&place, &format!("{key} = {quoted}\n"));
    load("m.toml", &text, Path::new("")).map(|plan| plan.config)
}

/// Returns the value if the text of the document consists of a value only.
fn literal(text: &str) -> Option<&str> {
    let code = text.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
    code.filter(|code| !code.contains('`')).or_else(|| text.parse::<u64>().ok().map(|_| text))
}

#[test]
fn default_of_document_changes_nothing_where_it_is_written() {
    let usual = load("m.toml", WHOLE, Path::new("")).map_err(|why| why.to_string()).unwrap();
    let mut count = 0;
    for heading in HEADINGS {
        for row in rows(heading) {
            let Some(default) = literal(row.default) else { continue };
            for key in &row.keys {
                let config = with(heading, key, default).map_err(|why| why.to_string()).unwrap();
                assert_eq!(config, usual.config, "{heading}: {key} = {default}");
                count += 1;
            }
        }
    }
    assert!(count >= 30, "{count} defaults");
}

/// Returns the smallest and largest value that a text of the document states, as in `1 to 1024` or
/// `up to 1s`.
fn limits(values: &str) -> Option<(&str, &str)> {
    let (before, after) = values.split_once("to ")?;
    let most = after.split([',', ' ', ';']).next()?.trim_matches('`');
    let least = match before.strip_suffix("up ") {
        Some(_) => "0",
        None => before.trim_end().rsplit(' ').next()?.trim_matches('`'),
    };
    let is_number = |word: &str| word.starts_with(|letter: char| letter.is_ascii_digit());
    (is_number(least) && is_number(most)).then_some((least, most))
}

/// Returns a value above a limit: the next number, or twice the value if it has a unit.
fn beyond(most: &str) -> String {
    let unit = most.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let number: u64 = most.trim_end_matches(unit).parse().expect(most);
    if unit.is_empty() { (number + 1).to_string() } else { format!("{}{unit}", 2 * number) }
}

#[test]
fn limits_of_the_document_are_those_of_the_program() {
    let mut count = 0;
    for heading in HEADINGS {
        for row in rows(heading) {
            let Some((least, most)) = limits(row.values) else { continue };
            for key in &row.keys {
                let values = [least.to_owned(), most.to_owned(), beyond(most)];
                let accepted = values.map(|value| with(heading, key, &value).is_ok());
                assert_eq!(accepted, [true, true, false], "{heading}: {key}: {least} to {most}");
                count += 1;
            }
        }
    }
    assert!(count >= 20, "{count} limits");
}

#[test]
fn defaults_of_drivers_are_those_of_the_document() {
    use millrace_drives::size_text;
    let default_of = |driver: &str, key: &str| {
        let mut rows = rows(&format!("### `{driver}`")).into_iter();
        rows.find(|row| row.keys == [key]).map(|row| row.default.trim_matches('`')).expect(key)
    };
    let presets = rows("### `model`").into_iter().find(|row| row.keys == ["preset"]).unwrap();
    for preset in millrace_drives::model_presets() {
        assert!(presets.values.contains(&format!("`{}`", preset.name)));
    }
    let null = millrace_drives::NullDriver::default();
    assert_eq!(default_of("null", "size"), size_text(null.size_bytes));
    assert_eq!(default_of("null", "depth"), null.depth.to_string());
    let file = millrace_drives::FileConfig::default();
    assert_eq!(default_of("file", "depth"), file.depth.to_string());
    let ram = millrace_drives::RamConfig::default();
    assert_eq!(default_of("ram", "depth"), ram.depth.to_string());
}
