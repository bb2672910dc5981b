//! Paths inside drive specs: made relative to the configuration, and found again.
//!
//! A path stands at the key `path` of a spec; a drive around another (`fault`) has that one's spec
//! at the key `drive`. Called by raw.rs, which resolves them, and by `serve`, which must know
//! whether opening a drive will create its file.

use std::path::{Path, PathBuf};

use millrace_drives::Spec;

/// Puts the spec's relative paths into `base`.
pub fn resolve(spec: &mut Spec, base: &Path) {
    for (key, value) in &mut spec.options {
        match key.as_str() {
            "path" => {
                if let Some(path) = base.join(&*value).to_str() {
                    *value = path.to_owned();
                }
            }
            "drive" => {
                if let Ok(mut inner) = value.parse() {
                    resolve(&mut inner, base);
                    *value = inner.to_string();
                }
            }
            _ => {}
        }
    }
}

/// The file that a spec names, if it names one.
pub fn file_of(spec: &Spec) -> Option<PathBuf> {
    if let Some(path) = spec.get("path") {
        return Some(path.into());
    }
    spec.get("drive").and_then(|inner| file_of(&inner.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str, base: &str) -> Spec {
        let mut spec: Spec = text.parse().unwrap();
        resolve(&mut spec, Path::new(base));
        spec
    }

    #[test]
    fn relative_paths_are_put_into_the_folder_and_absolute_ones_stay() {
        let file = |text: &str, base: &str| file_of(&resolved(text, base)).unwrap();
        assert_eq!(file("file:path=d0,size=1g", "conf"), Path::new("conf/d0"));
        assert_eq!(file("file:path=/x/d0", "conf"), Path::new("/x/d0"));
        assert_eq!(file("file:path=d0", ""), Path::new("d0"));
        assert_eq!(file_of(&resolved("null:size=1g", "conf")), None);
    }

    #[test]
    fn the_path_of_a_drive_inside_a_drive_is_resolved_too() {
        let spec = resolved("fault:drive=(file:path=d0,size=1g),every=9", "conf");
        assert_eq!(spec.to_string(), "fault:drive=(file:path=conf/d0,size=1g),every=9");
        assert_eq!(file_of(&spec).unwrap(), Path::new("conf/d0"));
    }
}
