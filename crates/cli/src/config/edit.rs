//! Adds, removes and changes sections of a configuration, and keeps its comments.
//!
//! Pure functions from text to text, for a daemon whose configuration is changed at runtime, and
//! for `millrace ctl save`.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use millrace::unknown_word;
use millrace_console::words::nearest;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, TableLike, Value, value};

use super::sections::is_list;

pub const SECTIONS: [&str; 4] = ["drive", "volume", "export", "group"];

/// Key of a configuration section and its new value. `None` removes the key from the section.
pub type KeyChange<'a> = (&'a str, Option<String>);

/// Adds a section with these keys. `cache.size` becomes the key `size` of the table `cache`.
pub fn add(
    text: &str,
    section: &str,
    name: &str,
    settings: &BTreeMap<String, String>,
) -> Result<String> {
    let mut document = parsed(text)?;
    let sections = sections(&mut document, section)?;
    if sections.iter().any(|table| name_of(table) == Some(name)) {
        bail!("{section} {name:?} exists already");
    }
    let mut table = Table::new();
    let is_named_by_volume =
        section == "export" && settings.get("volume").is_some_and(|volume| volume == name);
    if !is_named_by_volume {
        table.insert("name", value(name));
    }
    for (key, word) in settings {
        let (outer, key) = key.split_once('.').unwrap_or(("", key));
        let place: &mut dyn TableLike = if outer.is_empty() {
            &mut table
        } else {
            let inner = table.entry(outer).or_insert_with(|| Item::Table(Table::new()));
            inner.as_table_like_mut().ok_or_else(|| anyhow!("{outer} is no table"))?
        };
        place.insert(key, Item::Value(value_of(section, key, word)));
    }
    table.decor_mut().set_prefix("\n");
    sections.push(table);
    Ok(document.to_string())
}

pub fn remove(text: &str, section: &str, name: &str) -> Result<String> {
    let mut document = parsed(text)?;
    let all = sections(&mut document, section)?;
    let Some(place) = all.iter().position(|table| name_of(table) == Some(name)) else {
        bail!("there is no {section} {name:?}{}", nearest(name, all.iter().filter_map(name_of)));
    };
    all.remove(place);
    if all.is_empty() {
        document.remove(section);
    }
    Ok(document.to_string())
}

/// Changes keys of the section called `name`. Adds the section if it does not exist.
pub fn change(text: &str, section: &str, name: &str, keys: &[KeyChange<'_>]) -> Result<String> {
    let mut document = parsed(text)?;
    let all = sections(&mut document, section)?;
    if !all.iter().any(|table| name_of(table) == Some(name)) {
        let mut table = Table::new();
        table.insert("name", value(name));
        table.decor_mut().set_prefix("\n");
        all.push(table);
    }
    for table in all.iter_mut().filter(|table| name_of(table) == Some(name)) {
        for (key, word) in keys {
            match word {
                Some(word) => drop(table.insert(key, Item::Value(value_of(section, key, word)))),
                None => drop(table.remove(key)),
            }
        }
    }
    Ok(document.to_string())
}

fn parsed(text: &str) -> Result<DocumentMut> {
    text.parse().map_err(|error| anyhow!("not valid TOML: {error}"))
}

fn sections<'a>(document: &'a mut DocumentMut, section: &str) -> Result<&'a mut ArrayOfTables> {
    if !SECTIONS.contains(&section) {
        bail!(unknown_word("section", section, &SECTIONS));
    }
    let item = document.entry(section).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    item.as_array_of_tables_mut()
        .ok_or_else(|| anyhow!("{section} must be written as [[{section}]] sections"))
}

/// Returns the name of a section. For an export without a `name`, returns the name of its volume.
fn name_of(table: &Table) -> Option<&str> {
    table.get("name").or_else(|| table.get("volume")).and_then(Item::as_str)
}

fn value_of(section: &str, key: &str, word: &str) -> Value {
    if is_list(&format!("[[{section}]]"), key) && !word.starts_with('[') {
        return Value::Array(word.split(',').map(str::trim).collect::<Array>());
    }
    match word.parse::<Value>() {
        Ok(value) if value.is_integer() || value.is_bool() || value.is_array() => value,
        _ => Value::from(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# all of it\n[server]\nthreads = 2 # few\n\n[[drive]]\nname = \"a\"\n\
                        spec = \"ram:size=1m\"\n\n# its export\n[[export]]\nvolume = \"a\"\n\
                        nbd = \"unix:s\"\n";

    fn settings(words: &[(&str, &str)]) -> BTreeMap<String, String> {
        words.iter().map(|(key, word)| ((*key).to_owned(), (*word).to_owned())).collect()
    }

    #[test]
    fn a_section_comes_and_goes_and_leaves_the_rest_as_it_was() {
        let keys = settings(&[("drives", "b,c"), ("cache.size", "8m"), ("layout", "stripe")]);
        let text = add(TEXT, "volume", "bc", &keys).unwrap();
        let added = "\n[[volume]]\nname = \"bc\"\ndrives = [\"b\", \"c\"]\nlayout = \"stripe\"\n\n\
                     [volume.cache]\nsize = \"8m\"\n";
        assert!(text.starts_with(TEXT) && text.contains("drives = [\"b\", \"c\"]"), "{text}");
        assert!(text.contains("[volume.cache]\nsize = \"8m\"\n"), "{text} {added}");
        assert_eq!(remove(&text, "volume", "bc").unwrap(), TEXT);
        let without = remove(TEXT, "export", "a").unwrap();
        assert!(without.starts_with("# all of it\n[server]\nthreads = 2 # few\n"), "{without}");
        assert!(!without.contains("[[export]]"), "{without}");
        let keys = settings(&[
            ("volume", "a"),
            ("nbd", "unix:t"),
            ("read-only", "true"),
            ("allow-users", "root, 7"),
        ]);
        let text = add(&without, "export", "a", &keys).unwrap();
        assert!(!text.contains("name = \"a\"\nnbd"), "an export has its volume's name: {text}");
        assert!(text.contains("read-only = true\n"), "{text}");
        assert!(text.contains("allow-users = [\"root\", \"7\"]\n"), "{text}");
    }

    #[test]
    fn keys_change_in_their_section_or_in_a_new_one() {
        let keys = [("weight", Some("400".to_owned())), ("iops", Some("2k".to_owned()))];
        let text = change(TEXT, "group", "gold", &keys).unwrap();
        assert!(
            text.ends_with("[[group]]\nname = \"gold\"\nweight = 400\niops = \"2k\"\n"),
            "{text}"
        );
        let text = change(&text, "group", "gold", &[("iops", None)]).unwrap();
        assert!(text.ends_with("weight = 400\n"), "{text}");
        let text = change(TEXT, "drive", "a", &[("scheduler", Some("fair".to_owned()))]).unwrap();
        assert!(text.contains("spec = \"ram:size=1m\"\nscheduler = \"fair\"\n\n# its"), "{text}");
    }

    #[test]
    fn names_that_are_there_or_not_are_told() {
        let said = |result: Result<String>| result.unwrap_err().to_string();
        assert_eq!(said(add(TEXT, "drive", "a", &settings(&[]))), "drive \"a\" exists already");
        assert_eq!(
            said(remove(TEXT, "drive", "aa")),
            "there is no drive \"aa\"; did you mean \"a\"?"
        );
        let text = "unknown section \"drives\"; choose drive, volume, export or group; did you mean \
                    \"drive\"?";
        assert_eq!(said(remove(TEXT, "drives", "a")), text);
    }
}
