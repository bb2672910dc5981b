//! Problems of a configuration, as texts that say how to fix them.
//!
//! A problem states the position (file and line, or the flag used instead), the key and value, and
//! the remedy. All problems that can be found in one pass are reported together.

use std::fmt;

use millrace_console::visible;

/// Prefix of the names of configurations that are built into the program. Error texts show the name
/// in place of a file name.
pub const BUILT_IN: &str = "built-in configuration";
/// Name of the running daemon's configuration, for use in errors. `ctl add` and `ctl remove` change
/// this configuration.
pub const RUNNING: &str = "running configuration";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    Flag(&'static str),
    File,
    Line(usize),
}

impl From<usize> for Position {
    fn from(line: usize) -> Position {
        Position::Line(line)
    }
}

/// All problems of one file. The file's name is empty for a configuration made from the command
/// line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblems {
    file: String,
    list: Vec<(Position, String)>,
}

impl ConfigProblems {
    pub fn new(file: &str) -> Self {
        ConfigProblems { file: visible(file).into_owned(), list: Vec::new() }
    }

    /// Adds a problem. Control characters in quoted parts of the file are escaped.
    pub fn add(&mut self, place: impl Into<Position>, text: impl Into<String>) {
        self.list.push((place.into(), visible(&text.into()).into_owned()));
    }

    pub fn unless_any<T>(mut self, value: T) -> Result<T, ConfigProblems> {
        if self.list.is_empty() {
            return Ok(value);
        }
        self.list.sort_by_key(|(place, _)| *place);
        Err(self)
    }

    pub fn log(&self) {
        self.to_string().lines().for_each(|line| tracing::error!("{line}"));
    }

    pub fn count(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        for (index, (place, text)) in self.list.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            match place {
                // A configuration made from the command line has no lines to show.
                Position::File | Position::Line(_) if file.is_empty() => {
                    write!(f, "{separator}{}", with_flag(text))?;
                }
                // A built-in configuration has no file in which the user could look up a line.
                Position::Line(_) if file.starts_with(BUILT_IN) => {
                    let text = text.replace(PATH, "choose another directory with --data-dir DIR");
                    write!(f, "{separator}{file}: {text}")?;
                }
                // `millrace ctl add` and `ctl remove` name the section on the command line and edit
                // no file, so the message needs no file or line.
                Position::Line(_) if file == RUNNING => write!(f, "{separator}{text}")?,
                Position::Flag(flag) => write!(f, "{separator}{flag} {text}")?,
                Position::File => write!(f, "{separator}{file}: {text}")?,
                Position::Line(line) => write!(f, "{separator}{file}:{line}: {text}")?,
            }
        }
        Ok(())
    }
}

const PATH: &str = "choose another path";
const PORT: &str = "choose another port";

/// Rewrites an error text for a user who started the daemon with flags, not with a configuration
/// file. The text then names a flag instead of a key.
fn with_flag(text: &str) -> String {
    let (nbd, vhost) = ("--nbd unix:PATH", "--vhost-user PATH");
    let keys = [
        ("nbd: ", "", "--nbd ", nbd),
        ("vhost-user-blk: ", "", "--vhost-user ", vhost),
        (
            "control: ",
            "control socket ",
            "control socket ",
            "--nbd unix:PATH, which also determines the default control socket",
        ),
    ];
    let known = keys.iter().find_map(|key| Some((key, text.strip_prefix(key.0)?)));
    let Some(((_, before, otherwise, flag), rest)) = known else { return text.to_owned() };
    if rest.contains(PATH) {
        return format!("{before}{}", rest.replace(PATH, &format!("{PATH} with {flag}")));
    }
    match rest.contains(PORT) {
        true => rest.replace(PORT, &format!("{PORT} with --nbd tcp:PORT")),
        false => format!("{otherwise}{rest}"),
    }
}

impl std::error::Error for ConfigProblems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_listed_by_line_with_the_file_in_front() {
        let mut problems = ConfigProblems::new("a.toml");
        problems.add(7, "second");
        problems.add(2, "first");
        let error = problems.unless_any(()).unwrap_err();
        assert_eq!(error.to_string(), "a.toml:2: first\na.toml:7: second");
    }

    #[test]
    fn what_is_not_of_the_file_names_its_flag() {
        let mut problems = ConfigProblems::new("built in");
        problems.add(Position::File, "no memory");
        problems.add(Position::Flag("--metrics"), "9100: in use");
        let error = problems.unless_any(()).unwrap_err();
        assert_eq!(error.to_string(), "--metrics 9100: in use\nbuilt in: no memory");
    }

    #[test]
    fn without_a_file_there_are_flags_and_no_lines() {
        let mut problems = ConfigProblems::new("");
        problems.add(7, "drive a: not there");
        problems.add(9, "nbd: unix:s: in use");
        let error = problems.unless_any(()).unwrap_err().to_string();
        assert_eq!(error, "drive a: not there\n--nbd unix:s: in use");
        let said = |text: &str| {
            let mut problems = ConfigProblems::new("");
            problems.add(7, text);
            problems.to_string()
        };
        let path = said("nbd: unix:s: taken; stop that, or choose another path");
        let with = "unix:s: taken; stop that, or choose another path with";
        assert_eq!(path, format!("{with} --nbd unix:PATH"));
        let path = said("vhost-user-blk: unix:s: taken; stop that, or choose another path");
        assert_eq!(path, format!("{with} --vhost-user PATH"));
        let port = said("nbd: tcp:[::1]:7: in use by another server; choose another port");
        assert!(port.starts_with("tcp:[::1]:7: in use"), "{port}");
        assert!(port.ends_with("choose another port with --nbd tcp:PORT"), "{port}");
    }

    #[test]
    fn the_built_in_configuration_has_a_folder_and_no_lines() {
        let mut problems = ConfigProblems::new("built-in configuration");
        problems.add(41, "control: unix:x/c: taken; move it away, or choose another path");
        let said = "built-in configuration: control: unix:x/c: taken; move it away, or choose \
                    another directory with --data-dir DIR";
        assert_eq!(problems.to_string(), said);
    }
}
