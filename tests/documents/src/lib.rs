//! Finds command lines in documents and help texts, so that tests can check that the programs
//! accept them.
//!
//! A document shows a command on an indented line of its own, with at least two spaces before its
//! explanation. Pure functions, called only by tests.

use clap::Command;

const LINE_MAX: usize = 100;

/// Splits a shell command into words, and drops everything from the first pipe, redirection or
/// separator on.
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars().chain([' ']) {
        match (letter, quote) {
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(end)) if letter == end => quote = None,
            (' ', None) if word.is_empty() => {}
            (' ', None) => words.push(std::mem::take(&mut word)),
            (letter, _) => word.push(letter),
        }
    }
    let ends = ["|", "&&", ">", "#", ";"];
    let end = words.iter().position(|word| ends.contains(&word.as_str()));
    words.truncate(end.unwrap_or(words.len()));
    words
}

/// Returns the commands of `program` that `texts` contain. `cargo` is the cargo command that runs
/// the program from its sources.
pub fn shown(texts: &[String], program: &str, cargo: &str) -> Vec<String> {
    let (begin, cargo) = (format!("{program} "), format!("{cargo} "));
    let joined = texts.iter().map(|text| joined(text)).collect::<Vec<_>>();
    let lines = joined.iter().flat_map(|text| text.lines());
    let mut found = Vec::new();
    for line in lines.filter(|line| line.starts_with("  ")) {
        for part in line.trim().split(" && ").flat_map(|part| part.split("; ")) {
            let part = part.split("  ").next().unwrap_or(part);
            let part = part
                .strip_prefix(&cargo)
                .map_or_else(|| part.to_owned(), |arguments| format!("{begin}{arguments}"));
            if part.starts_with(&begin) {
                found.push(part);
            }
        }
    }
    found
}

/// Joins each line that ends in a `\` with the next line.
fn joined(text: &str) -> String {
    let mut parts = text.split(" \\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + " " + part.trim_start())
}

/// Returns the examples and notes below the help of a command and of all its subcommands.
pub fn examples(command: &Command) -> Vec<String> {
    let own = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    own.into_iter().chain(command.get_subcommands().flat_map(examples)).collect()
}

/// Returns the help lines longer than 100 characters, each with its command's name in front.
pub fn long_lines(command: &Command) -> Vec<String> {
    fn check(command: &mut Command, found: &mut Vec<String>) {
        let name = command.get_name().to_owned();
        for help in [command.render_help(), command.render_long_help()] {
            let help = help.to_string();
            let long = help.lines().filter(|line| line.chars().count() > LINE_MAX);
            found.extend(long.map(|line| format!("{name}: {line}")));
        }
        command.get_subcommands_mut().for_each(|verb| check(verb, found));
    }
    let mut command = command.clone().term_width(LINE_MAX);
    command.build();
    let mut found = Vec::new();
    check(&mut command, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_with_their_words() {
        let text = "Text: p no\n  p a 'b c'  why\n  cd x && cargo run -- d | less\n  q e; p f\n"
            .to_owned();
        let found = shown(&[text], "p", "cargo run --");
        assert_eq!(found, ["p a 'b c'", "p d | less", "p f"]);
        assert_eq!(words(&found[0]), ["p", "a", "b c"]);
        assert_eq!(words(&found[1]), ["p", "d"]);
    }

    #[test]
    fn a_line_of_a_help_text_that_is_too_long_is_named() {
        let verb = Command::new("verb").after_help("x".repeat(101));
        let found = long_lines(&Command::new("p").subcommand(verb));
        assert!(found.iter().all(|line| line.starts_with("verb: xxx")), "{found:?}");
        assert_eq!(found.len(), 2);
    }
}
