//! Verbs that have moved to millrace-lab, and the message for a command line that still uses them.
//!
//! This module owns the table of these verbs. The command-line definition does not have them, so
//! help, completions and manual pages do not show them. cli.rs calls this module with an error of
//! the parser.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use millrace_console::{shell_word, visible};

const MOVED: [&[&str]; 6] = [
    &["bench"],
    &["explore"],
    &["paper"],
    &["replay"],
    &["trace", "convert"],
    &["trace", "report"],
];

/// Returns the message for a command line with a verb that has moved to millrace-lab. Returns
/// `None` for any other command line. `words` are the arguments without the program's name.
pub fn answer(error: &clap::Error, words: &[String]) -> Option<String> {
    let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(unknown))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    else {
        return None;
    };
    // The arguments must begin with all words of the old verb. So `ctl bench` gets no message about
    // the old verb `bench`: `millrace ctl bench` was never a command.
    let given: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let is_named =
        |verb: &&&[&str]| verb.last() == Some(&unknown.as_str()) && given.starts_with(verb);
    let verb = MOVED.iter().find(is_named)?.join(" ");
    let line = words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
    Some(format!("`{verb}` is now a command of millrace-lab: millrace-lab {}", visible(&line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn answer_to(line: &[&str]) -> Option<String> {
        let words: Vec<String> = line.iter().map(ToString::to_string).collect();
        let whole = std::iter::once("millrace".to_owned()).chain(words.iter().cloned());
        answer(&command().try_get_matches_from(whole).unwrap_err(), &words)
    }

    #[test]
    fn an_old_command_line_is_answered_with_the_new_one() {
        let new = |verb: &str, line: &str| {
            Some(format!("`{verb}` is now a command of millrace-lab: millrace-lab {line}"))
        };
        assert_eq!(answer_to(&["paper", "systor13"]), new("paper", "paper systor13"));
        assert_eq!(answer_to(&["bench", "--help"]), new("bench", "bench --help"));
        assert_eq!(answer_to(&["-v", "explore"]), new("explore", "-v explore"));
        let line = ["replay", "t", "--to", "nbd+unix:///?socket=it's"];
        let words = "replay t --to 'nbd+unix:///?socket=it'\\''s'";
        assert_eq!(answer_to(&line), new("replay", words));
        assert_eq!(answer_to(&["trace", "report", ""]), new("trace report", "trace report ''"));
        assert_eq!(answer_to(&["trace", "convert"]), new("trace convert", "trace convert"));
    }

    #[test]
    fn other_errors_are_left_to_the_parser() {
        for line in
            ["report sda", "bemch", "trace shaw", "stat --paper", "ctl bench", "trace bench"]
        {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(answer_to(&words), None, "{line}");
        }
    }

    #[test]
    fn no_help_names_a_verb_that_moved() {
        let mut command = command();
        for verb in MOVED {
            let found = verb
                .iter()
                .try_fold(&mut command, |command, name| command.find_subcommand_mut(name));
            assert!(found.is_none(), "{verb:?}");
        }
    }
}
