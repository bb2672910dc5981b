//! `Spec`: a drive as users write it: `driver:key=value,key=value`, or `driver@controller:...`.
//!
//! A value that contains commas stands in parentheses, so specs nest:
//! `fault:drive=(file:path=/x/d0,size=4g),every=100`. A plain path is a `file` drive, and an NBD
//! URL is an `nbd` drive. Invariant: a `Spec` names a driver of the table `crate::DRIVERS` and only
//! keys of that driver, each once; values are checked when the drive is opened.

mod keys;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use millrace_block::QueueKind;

use crate::common::words::{nearest, unknown_word};

/// Maximum nesting of drives that wrap others, such as `fault`.
const NESTING_MAX: usize = 16;
const SHOWN_CHARS: usize = 60;

#[doc = include_str!("spec.md")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Name of the driver, one of [`drivers`].
    pub driver: String,
    /// Name of the block layer's controller that the drive is attached to. The key `controller` of
    /// a `model` drive is something else: a part of the modelled hardware.
    pub controller: Option<String>,
    /// Keys and values, in the order in which they were written.
    pub options: Vec<(String, String)>,
}

/// Reason for which a spec is refused, or its drive cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages explain the fields.
pub enum SpecError {
    #[error("drive spec `{spec}`: {what}; write driver:key=value,key=value")]
    Syntax { spec: String, what: String },
    #[error("{}", unknown_word("driver", driver, &drivers().collect::<Vec<_>>()))]
    UnknownDriver { driver: String },
    #[error(
        "driver {driver} has no key `{key}`{}; its keys are {}",
        hint_of(key, nearest),
        known_keys(driver).unwrap_or_default().join(", ")
    )]
    UnknownKey { driver: String, key: String, nearest: Option<&'static str> },
    #[error("driver {driver}: key `{key}` is given twice; remove one of them")]
    DuplicateKey { driver: String, key: String },
    #[error("driver {driver} needs {key}=...")]
    MissingKey { driver: String, key: &'static str },
    #[error("driver {driver}: {key}={value} is invalid; {expected}")]
    InvalidValue { driver: String, key: String, value: String, expected: String },
    #[error(
        "controller `{spec}`: {what}; write NAME:tags=N, and perhaps \
         sharing=queue|drive|controller and node=N"
    )]
    Controller { spec: String, what: String },
    #[error(
        "there is no controller `{name}`{}",
        if known.is_empty() { "; name it first".into() } else { format!("; there are: {known}") }
    )]
    UnknownController { name: String, known: String },
    #[error(transparent)]
    Open(#[from] millrace_block::Error),
}

fn hint_of(key: &str, nearest: &Option<&'static str>) -> String {
    match (key, nearest) {
        ("timeout", _) => " (write timeout as a key next to spec: timeout = \"30s\")".to_owned(),
        (_, Some(name)) => format!(" (did you mean `{name}`?)"),
        (_, None) => String::new(),
    }
}

/// Returns the names of all drivers.
pub fn drivers() -> impl Iterator<Item = &'static str> {
    crate::DRIVERS.iter().map(|row| row.name)
}

/// Returns the keys of a driver, or `None` if there is no such driver.
#[must_use]
pub fn known_keys(driver: &str) -> Option<Vec<&'static str>> {
    crate::driver(driver).map(|row| row.keys.split(' ').collect())
}

fn main_key(driver: &str) -> Option<&'static str> {
    crate::driver(driver)?.main_key
}

impl Spec {
    /// Creates a spec from separate keys and values, as in a configuration file.
    ///
    /// # Errors
    /// Returns `UnknownDriver`, `UnknownKey` or `DuplicateKey`.
    pub fn from_pairs(
        driver: &str,
        pairs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Spec, SpecError> {
        Spec::of_pairs(driver, pairs)?.checked()
    }

    /// Returns an error if specs are nested more than [`NESTING_MAX`] deep, because other code
    /// follows them recursively. An invalid inner spec is refused later, when it is parsed.
    fn checked(self) -> Result<Spec, SpecError> {
        let mut inner = self.get("drive").map(str::to_owned);
        for _ in 0..NESTING_MAX {
            let Some(text) = inner else { return Ok(self) };
            let Ok(spec) = Spec::parse_outermost(&text) else { return Ok(self) };
            inner = spec.get("drive").map(str::to_owned);
        }
        if inner.is_none() {
            return Ok(self);
        }
        let what = format!("more than {NESTING_MAX} drives are nested");
        let start: String = self.to_string().chars().take(SHOWN_CHARS).collect();
        Err(SpecError::Syntax { spec: format!("{start}..."), what })
    }

    fn of_pairs(
        driver: &str,
        pairs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Spec, SpecError> {
        let Some(keys) = known_keys(driver) else {
            return Err(SpecError::UnknownDriver { driver: driver.into() });
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

    /// Returns the path of the drive's file, or `None` if the drive uses no file. If the drive
    /// wraps another one, returns the path of the wrapped drive's file.
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        self.innermost().get("path").map(PathBuf::from)
    }

    /// Returns the innermost spec, which says where the data are.
    #[must_use]
    pub fn innermost(&self) -> Spec {
        let inner = self.get("drive").and_then(|inner| inner.parse::<Spec>().ok());
        inner.map_or_else(|| self.clone(), |inner| inner.innermost())
    }

    /// Returns true if only the I/O thread that owns a queue of the drive may run the queue. If
    /// false, any thread may run the queue. If the drive wraps another one, the wrapped drive
    /// decides.
    #[must_use]
    pub fn is_run_by_owners(&self) -> bool {
        let driver = crate::driver(&self.innermost().driver);
        driver.is_some_and(|row| row.queues == QueueKind::OwnerOnly)
    }

    /// Resolves relative paths against the directory `base`, also in nested specs (the values of
    /// `drive=`).
    pub fn resolve_paths(&mut self, base: &Path) {
        let path_keys = crate::driver(&self.driver).map_or("", |row| row.path_keys);
        for (key, value) in &mut self.options {
            if key == "drive"
                && let Ok(mut inner) = value.parse::<Spec>()
            {
                inner.resolve_paths(base);
                *value = inner.to_string();
            } else if path_keys.split(' ').any(|known| known == key)
                && let Some(path) = base.join(&*value).to_str()
            {
                *value = path.to_owned();
            }
        }
    }

    /// Sets a key, unless it has a value already or the driver does not have the key.
    pub fn set_default(&mut self, key: &str, value: &str) {
        let is_known = known_keys(&self.driver).is_some_and(|keys| keys.contains(&key));
        if is_known && self.get(key).is_none() {
            self.options.push((key.to_owned(), value.to_owned()));
        }
    }

    /// Returns the value of a key, if it is given.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        Spec::parse_outermost(text)?.checked()
    }
}

impl Spec {
    /// Parses the outermost spec. Nested specs are kept as text, without a check.
    fn parse_outermost(text: &str) -> Result<Spec, SpecError> {
        if let Some(spelled_out) = url_or_path(text) {
            return Spec::parse_outermost(&spelled_out);
        }
        let wrong = |what: &str| Err(SpecError::Syntax { spec: text.into(), what: what.into() });
        let (driver, rest) = text.split_once(':').unwrap_or((text, ""));
        let (driver, controller) = match driver.split_once('@') {
            Some((driver, controller)) => (driver, Some(controller)),
            None => (driver, None),
        };
        if driver.is_empty() {
            return wrong("it names no driver");
        }
        if controller == Some("") {
            return wrong("the controller's name must follow the @");
        }
        // The driver is checked first, because the rest of an unknown driver's spec may have any
        // form.
        Spec::of_pairs(driver, std::iter::empty())?;
        let Some(pieces) = split_outside(rest, ',') else {
            return wrong("its parentheses are not balanced");
        };
        let mut pairs = Vec::new();
        for piece in pieces.into_iter().filter(|_| !rest.is_empty()) {
            let main_key = main_key(driver).filter(|_| pairs.is_empty() && !piece.is_empty());
            match piece.split_once('=').or(main_key.map(|key| (key, piece))) {
                Some((key, value)) if !key.is_empty() => {
                    pairs.push((key.trim().to_string(), unwrapped(value).to_string()));
                }
                _ => return wrong(&format!("`{piece}` is not key=value")),
            }
        }
        let spec = Spec::of_pairs(driver, pairs)?;
        Ok(Spec { controller: controller.map(Into::into), ..spec })
    }
}

/// Returns the spec that an NBD URL or a plain path stands for, or `None` if the text names its
/// driver. A plain path must have a slash or a dot, which no driver's name has: otherwise a
/// misspelt driver, such as `disk`, would be taken for a path.
fn url_or_path(text: &str) -> Option<String> {
    if let Some((scheme, _)) = text.split_once("://") {
        let is_nbd = matches!(scheme, "nbd" | "nbds" | "nbd+unix" | "nbds+unix");
        return is_nbd.then(|| format!("nbd:uri={text}"));
    }
    let start = text.split([':', '@', ',', '=']).next().unwrap_or(text);
    start.contains(['/', '.']).then(|| format!("file:path={text}"))
}

/// Splits `text` at separators outside parentheses. Returns `None` if the parentheses are not
/// balanced.
fn split_outside(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut pieces, mut depth, mut start) = (Vec::new(), 0u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            c if c == separator && depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    (depth == 0).then_some(pieces)
}

fn unwrapped(text: &str) -> &str {
    match text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inside) if split_outside(inside, ',').is_some() => inside,
        _ => text,
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
    fn separators_in_parentheses_do_not_split() {
        assert_eq!(split_outside("a,(b,c),d", ','), Some(vec!["a", "(b,c)", "d"]));
        assert_eq!(split_outside("a,(b", ','), None);
        assert_eq!(split_outside("a)", ','), None);
        assert_eq!(unwrapped("(a,b)"), "a,b");
        assert_eq!(unwrapped("(a)(b)"), "(a)(b)");
    }

    #[test]
    fn nested_drives_have_a_limit_and_never_overflow_the_stack() {
        let nested = |depth| "fault:drive=(".repeat(depth) + "null:" + &")".repeat(depth);
        let plain = |depth| "fault:drive=".repeat(depth) + "null:";
        let spec: Spec = nested(NESTING_MAX).parse().unwrap();
        assert!(!spec.is_run_by_owners() && crate::check(&spec).is_ok());
        for text in [nested(NESTING_MAX + 1), nested(6_000), plain(6_000)] {
            let said = error(&text).to_string();
            assert!(said.contains("more than 16 drives are nested") && said.len() < 300);
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
    fn plain_path_is_a_file_and_nbd_url_is_an_nbd_drive() {
        for (short, spelled_out) in [
            ("a.img", "file:path=a.img"),
            ("./a", "file:path=./a"),
            ("/x/a.img,size=1g", "file:path=/x/a.img,size=1g"),
            ("/a@b:c=d", "file:path=/a@b:c=d"),
            ("nbd://localhost/x", "nbd:uri=nbd://localhost/x"),
            ("nbds://h/x,tls-ca=/ca", "nbd:uri=nbds://h/x,tls-ca=/ca"),
            ("nbd+unix:///x?socket=/s", "nbd:uri=nbd+unix:///x?socket=/s"),
            ("fault:drive=./a,every=9", "fault:drive=./a,every=9"),
        ] {
            assert_eq!(short.parse::<Spec>(), spelled_out.parse(), "{short}");
        }
        for text in ["disk", "https://h.test/x", "fiel:a.img"] {
            assert!(matches!(error(text), SpecError::UnknownDriver { .. }), "{text}");
        }
        let mut relative: Spec = "fault:drive=a.img".parse().unwrap();
        relative.resolve_paths(Path::new("/etc"));
        assert_eq!(relative.to_string(), "fault:drive=file:path=/etc/a.img");
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
        let unknown = error("fiel:/x");
        assert_eq!(unknown, SpecError::UnknownDriver { driver: "fiel".into() });
        let said = unknown.to_string();
        assert!(said.starts_with("unknown driver \"fiel\"; choose null, ram, "), "{said}");
        assert!(said.ends_with("; did you mean \"file\"?"), "{said}");
        let (driver, key) = ("file".to_string(), "pth".to_string());
        let expected = SpecError::UnknownKey { driver, key, nearest: Some("path") };
        assert_eq!(error("file:pth=/x"), expected);
        assert!(expected.to_string().contains("did you mean `path`?"));
    }

    #[test]
    fn all_keys_of_a_driver_go_together() {
        for text in [
            "null:size=1g,delay=10us,queues=8,depth=64,block=4k",
            "ram:size=1g,block=4k,depth=256",
            "model:preset=850evo,size=1g,block=4k,queues=8,depth=64,data=ram,units=16,page=16k,\
             read=80us,write=200us,latency=10us,read-command=1us,write-command=1us,\
             read-bandwidth=540MB,write-bandwidth=520MB,buffer=256m,jitter=0.1,tail-share=0.01,\
             tail=1ms,seed=7,controller=hba,controller-tags=32,controller-bandwidth=3GB,\
             controller-command=150us",
            "file:path=/x/d0,size=4g,grow=on,direct=auto,aio=auto,advice=normal,depth=128,lock=on,\
             read-only=off",
            "nbd:uri=nbd://host:10809/name,connections=4,depth=256,reconnect=60s,\
             write-through=off,on-server-restart=flush-error,read-only=off",
            "rbd:image=pool/image,conf=/etc/ceph/ceph.conf,cluster=ceph,id=admin,depth=128,lock=on,\
             read-only=off,connect=60s,writethrough-until-flush=off",
            "fault:drive=(ram:size=1g),name=bad,error-rate=0.01,status=eio,op=write,range=1m-2m,\
             latency=5ms,stuck=off,dead=off,volatile=on,fua=off,seed=7",
        ] {
            let spec: Spec = text.parse().unwrap();
            let keys: Vec<&str> = spec.options.iter().map(|(key, _)| key.as_str()).collect();
            let known = known_keys(&spec.driver).unwrap().into_iter();
            // `every` goes without `error-rate`, and keys of TLS take another URI and a feature.
            let known = known.filter(|key| *key != "every" && !key.starts_with("tls-"));
            assert_eq!(keys, known.collect::<Vec<_>>());
            assert_eq!(crate::check(&spec), Ok(()), "{spec}");
        }
    }

    #[test]
    fn a_place_of_faults_without_a_fault_is_a_mistake() {
        for key in ["range=0-4k", "op=write"] {
            let spec: Spec = format!("fault:drive=(ram:size=1m),{key}").parse().unwrap();
            let error = crate::check(&spec).unwrap_err().to_string();
            assert!(error.contains("names no fault; add status"), "{error}");
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

    #[test]
    fn relative_paths_are_put_into_folder_and_absolute_ones_stay() {
        for (text, base, expected) in [
            ("file:path=d0,size=1g", "conf", "file:path=conf/d0,size=1g"),
            ("file:path=/x/d0", "conf", "file:path=/x/d0"),
            ("file:path=d0", "", "file:path=d0"),
            ("null:size=1g", "conf", "null:size=1g"),
            ("rbd:pool/image,conf=far.conf", "conf", "rbd:pool/image,conf=conf/far.conf"),
            ("nbd:uri=u,tls-ca=a,tls-key=/k", "c", "nbd:uri=u,tls-ca=c/a,tls-key=/k"),
            ("fault:drive=(file:path=d0),every=9", "c", "fault:drive=file:path=c/d0,every=9"),
        ] {
            let mut spec: Spec = text.parse().unwrap();
            spec.resolve_paths(Path::new(base));
            assert_eq!(spec.to_string(), expected);
        }
        let nested: Spec = "fault:drive=(fault:drive=(file:path=d0,size=1g))".parse().unwrap();
        assert_eq!(nested.file(), Some("d0".into()));
        assert_eq!("null".parse::<Spec>().unwrap().file(), None);
    }
}
