//! Where the configuration comes from: a file, or the text embedded in the program.
//!
//! Owns the default configuration. Called by `serve`; reads the one file that was named.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

const DEFAULT: &str = include_str!("../../default.toml");
const DEFAULT_FOLDER: &str = "millrace-data";

/// A configuration text and where it is from.
#[derive(Debug)]
pub struct Source {
    /// Its name in messages.
    pub name: String,
    /// The TOML text.
    pub text: String,
    /// Where its relative paths lie; empty for the working folder.
    pub base: PathBuf,
    /// The data folder, if the default is served: it is made when it is missing.
    pub data_dir: Option<PathBuf>,
}

impl Source {
    /// The text of `file`, or the default with its data in `data_dir`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(file: Option<&Path>, data_dir: Option<&str>) -> anyhow::Result<Source> {
        let Some(file) = file else {
            return Ok(Self::embedded(data_dir.unwrap_or(DEFAULT_FOLDER)));
        };
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| {
            let more = match error.kind() {
                ErrorKind::NotFound => "; `millrace serve --print-config` prints one to begin with",
                _ => "",
            };
            anyhow!("{name}: cannot read the configuration: {error}{more}")
        })?;
        let base = file.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Source { name, text, base, data_dir: None })
    }

    fn embedded(folder: &str) -> Source {
        let escaped = folder.replace('\\', "\\\\").replace('"', "\\\"");
        let text = match folder {
            DEFAULT_FOLDER => DEFAULT.to_owned(),
            _ => DEFAULT.replace(DEFAULT_FOLDER, escaped.trim_end_matches('/')),
        };
        let name = match folder {
            DEFAULT_FOLDER => "built-in configuration".to_owned(),
            _ => format!("built-in configuration with --data-dir {folder}"),
        };
        Source { name, text, base: PathBuf::new(), data_dir: Some(folder.into()) }
    }
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
            assert_eq!((plan.drives.len(), plan.warnings.len()), (4, 0));
            let path = plan.drives[0].spec.get("path").unwrap();
            assert_eq!(path, format!("{}/d0", folder.trim_end_matches('/')));
        }
    }
}
