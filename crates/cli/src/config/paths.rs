//! Paths inside drive specs, made relative to the configuration.
//!
//! A path stands at the keys `path` and `conf` of a spec, and at keys of TLS; a drive around
//! another (`fault`) has that one's spec at the key `drive`. Called by sections.rs; `Spec::file`
//! finds them again.

use std::path::Path;

use millrace_drives::Spec;

/// Puts the spec's relative paths into `base`.
pub fn resolve(spec: &mut Spec, base: &Path) {
    for (key, value) in &mut spec.options {
        match key.as_str() {
            "path" | "conf" | "tls-ca" | "tls-certificate" | "tls-key" => {
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
        let file = |text: &str, base: &str| resolved(text, base).file().unwrap();
        assert_eq!(file("file:path=d0,size=1g", "conf"), Path::new("conf/d0"));
        assert_eq!(file("file:path=/x/d0", "conf"), Path::new("/x/d0"));
        assert_eq!(file("file:path=d0", ""), Path::new("d0"));
        assert_eq!(resolved("null:size=1g", "conf").file(), None);
        let cluster = resolved("rbd:pool/image,conf=far.conf", "conf");
        assert_eq!(cluster.to_string(), "rbd:pool/image,conf=conf/far.conf");
    }

    #[test]
    fn the_path_of_a_drive_inside_a_drive_is_resolved_too() {
        let spec = resolved("fault:drive=(file:path=d0,size=1g),every=9", "conf");
        assert_eq!(spec.to_string(), "fault:drive=(file:path=conf/d0,size=1g),every=9");
        assert_eq!(spec.file().unwrap(), Path::new("conf/d0"));
    }
}
