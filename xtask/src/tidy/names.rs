//! Rule: a type's name says what the type is, and no two types in `crates/` have the same name.
//!
//! A name of one word must be a standard term, and must be listed in `xtask/allow/names.txt`. A
//! name of several words needs an entry there only if several types have the name. The entry's
//! number is then the number of types beyond the first. Tests and the laboratory are exempt.

use std::collections::BTreeSet;

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Source, numbered};

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut excesses = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        for (line, name) in types(source) {
            let is_repeated = !seen.insert(name.clone());
            let advice = match words(&name) {
                1 => "use a name of two words, or list a standard term in xtask/allow/names.txt",
                _ if is_repeated => "another type in crates/ has this name; choose another",
                _ => continue,
            };
            let finding = Finding::new(&source.path, line, format!("{name}: {advice}"));
            excesses.push(Excess { key: name, amount: 1, finding });
        }
    }
    list.check(excesses)
}

fn types(source: &Source) -> Vec<(usize, String)> {
    let is_library = source.path.contains("/src/");
    let lines = numbered(&source.code).filter(|(line, _)| is_library && !source.is_test(*line));
    lines.filter_map(|(line, code)| Some((line, type_defined(code)?))).collect()
}

fn type_defined(code: &str) -> Option<String> {
    let words = code.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|w| !w.is_empty());
    let mut words = words.skip_while(|word| ["pub", "crate", "super", "unsafe"].contains(word));
    let defines = ["struct", "enum", "trait", "union"].contains(&words.next()?);
    let name = words.next().filter(|name| defines && name.starts_with(char::is_uppercase))?;
    Some(name.to_owned())
}

fn words(name: &str) -> usize {
    name.chars().filter(|c| c.is_uppercase()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], list: &str) -> Vec<String> {
        let parse = |(path, text): &(&str, &str)| Source::parse(path, text);
        let sources: Vec<_> = files.iter().map(parse).collect();
        let list = AllowList::parse("names.txt", list).unwrap();
        check(&sources, &list).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_words_pass_and_one_word_is_listed() {
        let text = "pub(crate) struct TokenBucket;\npub struct Bio;\n#[cfg(test)]\nstruct Rig;\n";
        let file = ("crates/a/src/b.rs", text);
        assert_eq!(found(&[file], "Bio\n"), [""; 0]);
        let message = "crates/a/src/b.rs:2: Bio: use a name of two words, or list a standard \
                       term in xtask/allow/names.txt";
        assert_eq!(found(&[file], ""), [message]);
        assert_eq!(found(&[("lab/a/src/b.rs", text)], ""), [""; 0]);
    }

    #[test]
    fn second_type_of_a_name_is_found_and_stale_entries_too() {
        let files = [
            ("crates/a/src/b.rs", "struct TokenBucket {}\n"),
            ("crates/c/src/d.rs", "enum TokenBucket {}\n"),
        ];
        let message = "crates/c/src/d.rs:1: TokenBucket: another type in crates/ has this name; \
                       choose another";
        assert_eq!(found(&files, ""), [message]);
        assert_eq!(found(&files, "TokenBucket\n"), [""; 0]);
        assert_eq!(found(&files[..1], "TokenBucket\n").len(), 1);
    }
}
