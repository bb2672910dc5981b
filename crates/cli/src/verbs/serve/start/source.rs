//! Finds the source of the configuration: a file, standard input, files to serve, or the built-in
//! default.
//!
//! A configuration has a name that ends with `.toml`, or is given with `--config`. Only regular
//! files of limited length are read as a configuration, so that a disk is never mistaken for one.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use super::images::{self, ImageArgs};
use crate::config::BUILT_IN;

const DEFAULT: &str = include_str!("../../../default.toml");
const DEFAULT_FOLDER: &str = "millrace-data";
/// Maximum length of a configuration, in bytes. A longer file is probably a disk that was given by
/// mistake. A configuration of 100,000 drives, with a volume and an export for each drive, has only
/// a tenth of this length.
const TEXT_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, Default)]
pub struct Source {
    /// Name of the configuration in messages; empty if it was made from the command line.
    pub name: String,
    pub text: String,
    pub file: Option<PathBuf>,
    /// Directory from which relative paths in the configuration start; empty for the working
    /// directory.
    pub base: PathBuf,
    /// Data directory of the default configuration, created if it is missing.
    pub data_dir: Option<PathBuf>,
}

impl Source {
    /// Reads or generates the configuration that the arguments select. `files` are the files to
    /// serve, or one configuration file; `data_dir` is where the default volume keeps its data.
    pub fn read(
        files: &[PathBuf],
        config: Option<&Path>,
        data_dir: Option<&str>,
        args: &ImageArgs,
    ) -> anyhow::Result<Source> {
        let config = match (config, files) {
            (Some(config), _) => Some(config),
            (None, [file]) if is_configuration(file) => Some(file.as_path()),
            (None, files) => {
                if let Some(file) = files.iter().find(|file| is_configuration(file)) {
                    let shown = file.display();
                    bail!(
                        "{shown}: a configuration cannot be served together with files; list all \
                         drives in it"
                    );
                }
                None
            }
        };
        let images = config.is_none() && !files.is_empty();
        if let Some(flag) = args.given().filter(|_| !images) {
            bail!(
                "{flag} goes with files that are served without a configuration: millrace serve \
                 disk.img {flag} ..."
            );
        }
        match config {
            Some(file) if file == Path::new("-") => Source::standard_input(),
            Some(file) => Source::file(file),
            None if images => {
                Ok(Source { text: images::configuration(files, args)?, ..Source::default() })
            }
            None => Ok(Source::embedded(data_dir.unwrap_or(DEFAULT_FOLDER))),
        }
    }

    pub fn file(file: &Path) -> anyhow::Result<Source> {
        let name = file.display().to_string();
        let failed = |error: &std::io::Error| {
            let more = match error.kind() {
                ErrorKind::NotFound => {
                    "; `millrace serve --print-config` prints an example to start from"
                }
                _ => "",
            };
            anyhow!("{name}: cannot read the configuration: {error}{more}")
        };
        // The type is checked before opening, because opening a pipe would wait.
        let meta = std::fs::metadata(file).map_err(|error| failed(&error))?;
        if !meta.is_file() {
            if meta.is_dir() {
                bail!(
                    "{name}: this is a directory, not a configuration; to serve its files, write a \
                     configuration with [[export]] and directory = \"{name}\""
                );
            }
            bail!(
                "{name}: this is not a regular file; to read a configuration from standard input, \
                 use `serve -`"
            );
        }
        let opened = std::fs::File::open(file).map_err(|error| failed(&error))?;
        let text = bounded(opened, &name)?;
        let base = file.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Source { name, text, file: Some(file.to_owned()), base, data_dir: None })
    }

    fn standard_input() -> anyhow::Result<Source> {
        let name = "standard input".to_owned();
        let text = bounded(std::io::stdin().lock(), &name)?;
        Ok(Source { name, text, ..Source::default() })
    }

    fn embedded(folder: &str) -> Source {
        let mut name = BUILT_IN.to_owned();
        let mut text = DEFAULT.to_owned();
        if folder != DEFAULT_FOLDER {
            let escaped = folder.replace('\\', "\\\\").replace('"', "\\\"");
            text = text.replace(DEFAULT_FOLDER, escaped.trim_end_matches('/'));
            name.push_str(&format!(" with --data-dir {folder}"));
        }
        Source { name, text, data_dir: Some(folder.into()), ..Source::default() }
    }
}

fn is_configuration(file: &Path) -> bool {
    file == Path::new("-") || file.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"))
}

fn bounded(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = from.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("{name}: cannot read the configuration"))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        bail!(
            "{name}: more than {} MiB is no configuration; a disk is served under a name that does \
             not end with .toml",
            TEXT_BYTES_MAX >> 20
        );
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        anyhow!("{name}: not valid UTF-8 at byte {place}; a configuration is TOML in UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn the_default_is_in_order_in_any_folder() {
        for folder in ["millrace-data", "a b", "/tmp/x/", "with\"quote"] {
            let source = Source::embedded(folder);
            let plan = config::load(&source.name, &source.text, &source.base);
            let plan = plan.map_err(|problems| problems.to_string()).unwrap();
            assert_eq!((plan.config.drives().count(), plan.warnings.len()), (4, 0));
            let path = plan.config.volumes[0].drives[0].spec.get("path").unwrap();
            assert_eq!(path, format!("{}/d0", folder.trim_end_matches('/')));
        }
    }

    fn read(files: &[&Path], config: Option<&Path>, images: &ImageArgs) -> Result<Source, String> {
        let files: Vec<PathBuf> = files.iter().map(|file| file.to_path_buf()).collect();
        Source::read(&files, config, None, images).map_err(|error| error.to_string())
    }

    #[test]
    fn a_configuration_is_known_by_its_name_or_by_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (plain, none) = (ImageArgs::default(), None);
        let toml = file("a.TOML", b"[server]\n");
        assert_eq!(read(&[&toml], none, &plain).unwrap().text, "[server]\n");
        let other = file("a.conf", b"[server]\n");
        assert_eq!(read(&[], Some(&other), &plain).unwrap().text, "[server]\n");
        let disk = file("a.img", &[0; 4096]);
        assert!(read(&[&disk], none, &plain).unwrap().text.contains("driver = \"file\""));
        let error = read(&[&disk, &toml], none, &plain).unwrap_err();
        assert!(
            error.contains("a.TOML: a configuration cannot be served together with files"),
            "{error}"
        );
        let read_only = ImageArgs { read_only: true, ..plain };
        let error = read(&[&toml], none, &read_only).unwrap_err();
        assert!(error.starts_with("--read-only goes with files"), "{error}");
        assert!(read(&[], none, &read_only).is_err());
    }

    #[test]
    fn what_is_too_long_or_no_text_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let plain = ImageArgs::default();
        let big = dir.path().join("big.toml");
        std::fs::File::create(&big).unwrap().set_len(1 << 40).unwrap();
        let error = read(&[&big], None, &plain).unwrap_err();
        assert!(error.contains("more than 256 MiB is no configuration"), "{error}");
        std::fs::write(&big, b"a = \"\xff\"").unwrap();
        let error = read(&[&big], None, &plain).unwrap_err();
        assert!(error.contains("not valid UTF-8 at byte 5"), "{error}");
        for (path, what, instead) in [
            ("/dev/zero", "not a regular file", "use `serve -`"),
            ("/tmp", "a directory", "directory = \"/tmp\""),
        ] {
            let error = read(&[], Some(Path::new(path)), &plain).unwrap_err();
            assert!(error.contains(what) && error.contains(instead), "{error}");
        }
    }
}
