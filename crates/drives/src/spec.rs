//! `Spec`: a drive as a person writes it: `driver:key=value,key=value`, or `driver@controller:...`.
//!
//! Plain data and its text form; `open.rs` makes drives of it. A value that holds commas stands in
//! parentheses, so specs nest: `fault:drive=(file:path=/x/d0,size=4g),every=100`. Configuration
//! files give the keys one by one, to `from_pairs`. Called by the binary and by tests. Invariant: a
//! `Spec` names a known driver and only keys that this driver has, each once; values are checked
//! when the drive is opened.

mod keys;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::common::values::{split_outside, unwrapped};
use crate::common::words::nearest;

/// Drivers and their keys.
const DRIVERS: [(&str, &[&str]); 7] = [
    ("null", &["size", "delay", "queues", "depth", "block"]),
    ("ram", &["size", "block", "depth"]),
    (
        "model",
        &[
            "preset",
            "size",
            "block",
            "queues",
            "depth",
            "data",
            "units",
            "page",
            "read",
            "write",
            "latency",
            "read-command",
            "write-command",
            "read-bandwidth",
            "write-bandwidth",
            "buffer",
            "jitter",
            "tail-share",
            "tail",
            "seed",
            "controller",
            "controller-tags",
            "controller-bandwidth",
            "controller-command",
        ],
    ),
    ("file", &["path", "size", "grow", "direct", "aio", "advice", "depth", "lock", "read-only"]),
    (
        "nbd",
        &[
            "uri",
            "connections",
            "depth",
            "reconnect",
            "write-through",
            "on-server-restart",
            "read-only",
            "tls-ca",
            "tls-certificate",
            "tls-key",
            "tls-hostname",
        ],
    ),
    (
        "rbd",
        &[
            "image",
            "conf",
            "cluster",
            "id",
            "depth",
            "lock",
            "read-only",
            "connect",
            "writethrough-until-flush",
        ],
    ),
    (
        "fault",
        &[
            "drive",
            "name",
            "error-rate",
            "every",
            "status",
            "op",
            "range",
            "latency",
            "stuck",
            "dead",
            "volatile",
            "fua",
            "seed",
        ],
    ),
];

/// Most drives inside each other, as `fault` drives are.
const NESTING_MAX: usize = 16;
/// Characters of a spec that is nested too deep which its error shows.
const SHOWN_CHARS: usize = 60;

/// The key that may go without its name, if it comes first.
fn main_key(driver: &str) -> Option<&'static str> {
    (driver == "rbd").then_some("image")
}

#[doc = include_str!("spec.md")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Which driver: `null`, `ram`, `model`, `file`, `nbd`, `rbd` or `fault`.
    pub driver: String,
    /// Name of the controller that it hangs on, as the block layer knows it; not to be confused
    /// with the key `controller` of a `model` drive, which is part of the modelled hardware.
    pub controller: Option<String>,
    /// Keys and values in the order of writing.
    pub options: Vec<(String, String)>,
}

/// Why a spec is refused or its drive cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Not of the form `driver:key=value,...`.
    #[error("drive spec `{spec}`: {what}; write driver:key=value,key=value")]
    Syntax {
        /// The whole text.
        spec: String,
        /// What is wrong with it.
        what: String,
    },
    /// No such driver.
    #[error(
        "no driver `{driver}`{}; there are null, ram, model, file, nbd, rbd and fault",
        hint(nearest)
    )]
    UnknownDriver {
        /// What was written.
        driver: String,
        /// The known one that is most like it.
        nearest: Option<&'static str>,
    },
    /// The driver has no such key.
    #[error("driver {driver} has no key `{key}`{}; it has {}", hint_of(key, nearest), list(driver))]
    UnknownKey {
        /// The driver.
        driver: String,
        /// What was written.
        key: String,
        /// The known one that is most like it.
        nearest: Option<&'static str>,
    },
    /// A key stands there twice.
    #[error("driver {driver}: key `{key}` is given twice; leave one out")]
    DuplicateKey {
        /// The driver.
        driver: String,
        /// The key.
        key: String,
    },
    /// A key is needed and not there.
    #[error("driver {driver} needs {key}=...")]
    MissingKey {
        /// The driver.
        driver: String,
        /// The key.
        key: &'static str,
    },
    /// A value that the key does not take.
    #[error("driver {driver}: {key}={value} is wrong; {expected}")]
    InvalidValue {
        /// The driver.
        driver: String,
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// What may stand there.
        expected: String,
    },
    /// The text of a controller makes no sense.
    #[error(
        "controller `{spec}`: {what}; write NAME:tags=N, and perhaps \
         sharing=queue|drive|controller and node=N"
    )]
    Controller {
        /// The whole text.
        spec: String,
        /// What is wrong with it.
        what: String,
    },
    /// No controller has the name that a drive gives.
    #[error(
        "there is no controller `{name}`{}",
        if known.is_empty() { "; name it first".into() } else { format!("; there are: {known}") }
    )]
    UnknownController {
        /// What was written.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The drive itself cannot be opened.
    #[error(transparent)]
    Open(#[from] millrace_block::Error),
}

/// What to do about an unknown key.
fn hint_of(key: &str, nearest: &Option<&'static str>) -> String {
    match key {
        "timeout" => " (timeout stands beside spec, as in timeout = \"30s\")".to_owned(),
        _ => hint(nearest),
    }
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"))
}

fn list(driver: &str) -> String {
    known_keys(driver).unwrap_or_default().join(", ")
}

/// The drivers that there are.
pub fn drivers() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|(name, _)| *name)
}

/// The keys of a driver; none if there is no such driver.
#[must_use]
pub fn known_keys(driver: &str) -> Option<&'static [&'static str]> {
    DRIVERS.iter().find(|(name, _)| *name == driver).map(|(_, keys)| *keys)
}

impl Spec {
    /// A spec of keys that are spelled out elsewhere, as in a configuration file.
    ///
    /// # Errors
    /// `UnknownDriver`, `UnknownKey` or `DuplicateKey`.
    pub fn from_pairs(
        driver: &str,
        pairs: impl Iterator<Item = (String, String)>,
    ) -> Result<Spec, SpecError> {
        let spec = Spec::of_pairs(driver, pairs)?;
        spec.check_nesting()?;
        Ok(spec)
    }

    /// Refuses drives inside drives that are nested too deep, so that code may follow them by
    /// recursion. A spec inside that is wrong is refused when it is read.
    fn check_nesting(&self) -> Result<(), SpecError> {
        let mut inner = self.get("drive").map(str::to_owned);
        for _ in 0..NESTING_MAX {
            let Some(text) = inner else { return Ok(()) };
            let Ok(spec) = Spec::parse_outermost(&text) else { return Ok(()) };
            inner = spec.get("drive").map(str::to_owned);
        }
        match inner {
            None => Ok(()),
            Some(_) => {
                let what = format!("more than {NESTING_MAX} drives inside each other");
                let start: String = self.to_string().chars().take(SHOWN_CHARS).collect();
                Err(SpecError::Syntax { spec: format!("{start}..."), what })
            }
        }
    }

    fn of_pairs(
        driver: &str,
        pairs: impl Iterator<Item = (String, String)>,
    ) -> Result<Spec, SpecError> {
        let Some(keys) = known_keys(driver) else {
            let nearest = nearest(driver, DRIVERS.iter().map(|(name, _)| *name));
            return Err(SpecError::UnknownDriver { driver: driver.into(), nearest });
        };
        let mut options: Vec<(String, String)> = Vec::new();
        for (key, value) in pairs {
            let driver = driver.to_string();
            if !keys.contains(&key.as_str()) {
                let nearest = nearest(&key, keys.iter().copied());
                return Err(SpecError::UnknownKey { driver, key, nearest });
            }
            if options.iter().any(|(known, _)| *known == key) {
                return Err(SpecError::DuplicateKey { driver, key });
            }
            options.push((key, value));
        }
        Ok(Spec { driver: driver.into(), controller: None, options })
    }

    /// The file that it names, or that the drive inside it names; none if there is none.
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        if let Some(path) = self.get("path") {
            return Some(path.into());
        }
        self.get("drive").and_then(|inner| inner.parse::<Spec>().ok()?.file())
    }

    /// Whether the drive, or the one inside it, has queues that belong to I/O threads: those of
    /// other drives are run by any thread.
    #[must_use]
    pub fn is_run_by_owners(&self) -> bool {
        let inner = || self.get("drive")?.parse::<Spec>().ok();
        match self.driver.as_str() {
            "file" | "nbd" | "rbd" => true,
            _ => inner().is_some_and(|inner| inner.is_run_by_owners()),
        }
    }

    /// Gives a key a value, unless it has one.
    pub fn set_default(&mut self, key: &'static str, value: &str) {
        debug_assert!(known_keys(&self.driver).is_some_and(|keys| keys.contains(&key)));
        if self.get(key).is_none() {
            self.options.push((key.to_owned(), value.to_owned()));
        }
    }

    /// The value of a key, if it is given.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// The main key of a driver with a first piece that is no `key=value`.
fn unnamed<'a>(
    driver: &str,
    before: &[(String, String)],
    piece: &'a str,
) -> Option<(&'a str, &'a str)> {
    main_key(driver).filter(|_| before.is_empty() && !piece.is_empty()).map(|key| (key, piece))
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let spec = Spec::parse_outermost(text)?;
        spec.check_nesting()?;
        Ok(spec)
    }
}

impl Spec {
    /// Reads a text; the specs inside it stay texts.
    fn parse_outermost(text: &str) -> Result<Spec, SpecError> {
        let wrong = |what: String| SpecError::Syntax { spec: text.into(), what };
        let (driver, rest) = text.split_once(':').unwrap_or((text, ""));
        let (driver, controller) = match driver.split_once('@') {
            Some((driver, controller)) => (driver, Some(controller)),
            None => (driver, None),
        };
        if driver.is_empty() {
            return Err(wrong("it names no driver".into()));
        }
        if controller == Some("") {
            return Err(wrong("a controller's name follows the @".into()));
        }
        // An unknown driver's pieces may have any form.
        Spec::of_pairs(driver, std::iter::empty())?;
        let Some(pieces) = split_outside(rest, ',') else {
            return Err(wrong("its parentheses do not match".into()));
        };
        let mut pairs = Vec::new();
        for piece in pieces.into_iter().filter(|_| !rest.is_empty()) {
            match piece.split_once('=').or_else(|| unnamed(driver, &pairs, piece)) {
                Some((key, value)) if !key.is_empty() => {
                    pairs.push((key.trim().to_string(), unwrapped(value).to_string()));
                }
                _ => return Err(wrong(format!("`{piece}` is not key=value"))),
            }
        }
        let spec = Spec::of_pairs(driver, pairs.into_iter())?;
        Ok(Spec { controller: controller.map(Into::into), ..spec })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.driver)?;
        if let Some(controller) = &self.controller {
            write!(f, "@{controller}")?;
        }
        f.write_str(":")?;
        for (index, (key, value)) in self.options.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let is_main = index == 0 && main_key(&self.driver) == Some(key);
            match value.contains([',', '(']) {
                _ if is_main && !value.contains([',', '(', '=']) => f.write_str(value)?,
                true => write!(f, "{comma}{key}=({value})")?,
                false => write!(f, "{comma}{key}={value}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> SpecError {
        text.parse::<Spec>().expect_err("the spec is wrong")
    }

    #[test]
    fn drives_inside_each_other_have_a_limit_and_no_depth_overflows_the_stack() {
        let nested = |depth| "fault:drive=(".repeat(depth) + "null:" + &")".repeat(depth);
        let plain = |depth| "fault:drive=".repeat(depth) + "null:";
        let spec: Spec = nested(NESTING_MAX).parse().unwrap();
        assert!(!spec.is_run_by_owners() && crate::check(&spec).is_ok());
        for text in [nested(NESTING_MAX + 1), nested(6_000), plain(6_000)] {
            let said = error(&text).to_string();
            assert!(said.contains("more than 16 drives inside each other") && said.len() < 300);
        }
        let pairs = [("drive".to_owned(), nested(6_000))].into_iter();
        assert!(Spec::from_pairs("fault", pairs).is_err());
    }

    #[test]
    fn spec_is_printed_as_it_was_read() {
        for text in [
            "null:",
            "ram:size=1g",
            "model@scu:preset=850evo",
            "file:path=/a@b:c",
            "file:path=/x/d0,size=4g,direct=on",
            "rbd:pool/space/image@snap",
            "rbd:pool/image,depth=64,lock=off",
            "rbd:image=p/a=b,id=me",
            "rbd:depth=64,image=p/i",
            "fault:drive=(file:path=/x/d0,size=4g),every=100,op=read",
            "fault:drive=(fault:drive=(ram:size=1g,block=4k),dead=on),latency=5ms",
        ] {
            assert_eq!(text.parse::<Spec>().map(|spec| spec.to_string()), Ok(text.to_string()));
        }
    }

    #[test]
    fn driver_alone_needs_no_colon() {
        assert_eq!("null".parse::<Spec>().unwrap().options, []);
    }

    #[test]
    fn inner_spec_comes_out_of_its_parentheses() {
        let spec: Spec = "fault:drive=(ram:size=1g,block=4k),dead=on".parse().unwrap();
        assert_eq!(spec.get("drive"), Some("ram:size=1g,block=4k"));
    }

    #[test]
    fn unknown_driver_and_key_name_the_nearest_known_one() {
        let nearest = Some("file");
        assert_eq!(error("fiel:/x"), SpecError::UnknownDriver { driver: "fiel".into(), nearest });
        let (driver, key) = ("file".to_string(), "pth".to_string());
        let expected = SpecError::UnknownKey { driver, key, nearest: Some("path") };
        assert_eq!(error("file:pth=/x"), expected);
        assert!(expected.to_string().contains("did you mean `path`?"));
    }

    /// The first cells of a driver's table in the documentation, each `key=value`.
    fn table(driver: &str) -> Vec<&'static str> {
        let text = include_str!("spec.md");
        let heading = format!("\n## `{driver}`\n");
        let rest = &text[text.find(&heading).expect(driver) + heading.len()..];
        let section = rest.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| row.split_once('`').unwrap().0).collect()
    }

    #[test]
    fn the_keys_of_the_documentation_are_those_that_parse_and_their_values_are_taken() {
        for driver in drivers() {
            let rows = table(driver);
            let keys: Vec<&str> = rows.iter().map(|row| row.split_once('=').unwrap().0).collect();
            let mut known = known_keys(driver).unwrap().to_vec();
            known.sort_unstable();
            let mut documented = keys.clone();
            documented.sort_unstable();
            assert_eq!(documented, known, "{driver}");
            // All keys together, but for the two that exclude each other.
            for without in ["every=", "error-rate="] {
                let is_taken = |row: &&str| {
                    !row.starts_with(without) && (cfg!(feature = "tls") || !row.starts_with("tls-"))
                };
                let rows: Vec<&str> = rows.iter().copied().filter(is_taken).collect();
                let mut text = format!("{driver}:{}", rows.join(","));
                if !cfg!(feature = "tls") {
                    text = text.replace("nbds:", "nbd:");
                }
                let spec: Spec = text.parse().unwrap();
                assert_eq!(crate::check(&spec), Ok(()), "{spec}");
            }
        }
        for preset in crate::model_presets() {
            assert!(include_str!("spec.md").contains(&format!("`{}`", preset.name)));
        }
        let headings = include_str!("spec.md").matches("\n## `").count();
        assert_eq!(headings, drivers().count());
    }

    #[test]
    fn a_place_of_faults_without_a_fault_is_a_mistake() {
        for key in ["range=0-4k", "op=write"] {
            let spec: Spec = format!("fault:drive=(ram:size=1m),{key}").parse().unwrap();
            let error = crate::check(&spec).unwrap_err().to_string();
            assert!(error.contains("not the fault; add status"), "{error}");
            let spec: Spec =
                format!("fault:drive=(ram:size=1m),{key},latency=1ms").parse().unwrap();
            assert_eq!(crate::check(&spec), Ok(()));
        }
    }

    #[test]
    fn files_and_images_are_run_by_their_owners_wherever_they_are() {
        for (text, expected) in [
            ("rbd:p/i", true),
            ("fault:drive=(fault:drive=(file:path=/x))", true),
            ("fault:drive=(ram:size=1g)", false),
            ("null", false),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap().is_run_by_owners(), expected, "{text}");
        }
    }

    #[test]
    fn key_that_is_given_twice_is_refused() {
        let (driver, key) = ("ram".to_string(), "size".to_string());
        assert_eq!(error("ram:size=1g,size=2g"), SpecError::DuplicateKey { driver, key });
    }

    #[test]
    fn text_that_is_no_spec_is_refused() {
        for text in [
            "",
            ":size=1",
            "@scu:",
            "null@",
            "null@:size=1g",
            "ram:size",
            "ram:size=1g,",
            "ram:=1",
            "rbd:pool/image,other",
            "file:/x/d0",
            "fault:drive=(ram",
        ] {
            assert!(matches!(error(text), SpecError::Syntax { .. }), "{text}");
        }
    }
}
