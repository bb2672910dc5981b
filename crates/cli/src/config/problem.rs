//! What is wrong with a configuration, said so that a person can mend it.
//!
//! Owns the list of problems found and the file's name. Filled by document.rs, check.rs
//! and by `serve` while it opens drives; printed by main. Every problem says where (file and line,
//! or the flag that went before the file), what (key and value) and what to do; all that can be
//! found in one go are reported in one.

use std::fmt;

use millrace_console::visible;

/// What the names of configurations begin with that nobody has written.
pub const BUILT_IN: &str = "built-in configuration";

/// Where something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// On the command line, at this flag.
    Flag(&'static str),
    /// In the file, at no line of its own.
    File,
    /// A line of the file, from 1.
    Line(usize),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What is wrong and what to do.
    pub text: String,
}

/// All that is wrong with one file; its name is empty where the command line says it all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    file: String,
    list: Vec<Problem>,
}

impl Problems {
    /// None yet.
    pub fn new(file: &str) -> Self {
        Problems { file: visible(file).into_owned(), list: Vec::new() }
    }

    /// One more; what it quotes of the file may be anything.
    pub fn add(&mut self, line: usize, text: impl Into<String>) {
        self.add_at(Place::Line(line), text);
    }

    /// One more, which may be at no line.
    pub fn add_at(&mut self, place: Place, text: impl Into<String>) {
        let text = visible(&text.into()).into_owned();
        self.list.push(Problem { place, text });
    }

    /// `value`, unless something is wrong; the problems then come in order of their lines.
    ///
    /// # Errors
    /// The problems, if there are any.
    pub fn unless_any<T>(mut self, value: T) -> Result<T, Problems> {
        if self.list.is_empty() {
            return Ok(value);
        }
        self.list.sort_by_key(|problem| problem.place);
        Err(self)
    }

    /// How many there are so far.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            let (file, text) = (&self.file, &problem.text);
            match problem.place {
                // Of the command line, which has no lines.
                Place::File | Place::Line(_) if file.is_empty() => {
                    write!(f, "{separator}{}", with_flag(text))?;
                }
                // Whoever reads it has seen no line of it.
                Place::Line(_) if file.starts_with(BUILT_IN) => {
                    let text = text.replace(PATH, "choose another folder with --data-dir DIR");
                    write!(f, "{separator}{file}: {text}")?;
                }
                Place::Flag(flag) => write!(f, "{separator}{flag} {text}")?,
                Place::File => write!(f, "{separator}{file}: {text}")?,
                Place::Line(line) => write!(f, "{separator}{file}:{line}: {text}")?,
            }
        }
        Ok(())
    }
}

/// What to do about a socket, as problems say it.
const PATH: &str = "choose another path";
const PORT: &str = "choose another port";

/// A text that begins with a key of a configuration, for whoever has written a command line. The
/// flag may not be on it, since it has a default: it is what to do, not what is wrong.
fn with_flag(text: &str) -> String {
    let (nbd, vhost) = ("--nbd unix:PATH", "--vhost-user PATH");
    let keys = [
        ("nbd: ", "", "--nbd ", nbd),
        ("vhost-user-blk: ", "", "--vhost-user ", vhost),
        ("control: ", "control socket ", "control socket ", "--nbd unix:PATH, beside which it is"),
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

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_listed_by_line_with_the_file_in_front() {
        let mut problems = Problems::new("a.toml");
        problems.add(7, "second");
        problems.add(2, "first");
        let error = problems.unless_any(()).unwrap_err();
        assert_eq!(error.to_string(), "a.toml:2: first\na.toml:7: second");
    }

    #[test]
    fn what_is_not_of_the_file_names_its_flag() {
        let mut problems = Problems::new("built in");
        problems.add_at(Place::File, "no memory");
        problems.add_at(Place::Flag("--metrics"), "9100: in use");
        let error = problems.unless_any(()).unwrap_err();
        assert_eq!(error.to_string(), "--metrics 9100: in use\nbuilt in: no memory");
    }

    #[test]
    fn without_a_file_there_are_flags_and_no_lines() {
        let mut problems = Problems::new("");
        problems.add(7, "drive a: not there");
        problems.add(9, "nbd: unix:s: in use");
        let error = problems.unless_any(()).unwrap_err().to_string();
        assert_eq!(error, "drive a: not there\n--nbd unix:s: in use");
        let said = |text: &str| {
            let mut problems = Problems::new("");
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
        let mut problems = Problems::new("built-in configuration");
        problems.add(41, "control: unix:x/c: taken; move it away, or choose another path");
        let said = "built-in configuration: control: unix:x/c: taken; move it away, or choose \
                    another folder with --data-dir DIR";
        assert_eq!(problems.to_string(), said);
    }
}
