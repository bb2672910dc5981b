//! `ImageName`: name of a Ceph image as users write it: `pool/image` or `pool/namespace/image`,
//! optionally with `@snapshot`.
//!
//! The terms follow the `rbd` program.

use std::fmt;
use std::str::FromStr;

/// Name of an image, or of one of its snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageName {
    /// Name of the pool.
    pub pool: String,
    /// Namespace in the pool; `None` for the default one.
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Name of the snapshot; `None` for the image itself.
    pub snapshot: Option<String>,
}

pub(crate) const FORM: &str =
    "write pool/image or pool/namespace/image, optionally followed by @snapshot";

impl FromStr for ImageName {
    /// The error has no details, because the only possible mistake is a wrong form.
    type Err = ();

    fn from_str(text: &str) -> Result<ImageName, ()> {
        let (image, snapshot) = match text.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = image.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(()),
        };
        let is_name = |part: &str| !part.is_empty() && !part.contains(['\0', '@', '/']);
        let mut all = [Some(pool), namespace, Some(image), snapshot].into_iter().flatten();
        if !all.all(is_name) {
            return Err(());
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        let (namespace, snapshot) = (owned(namespace), owned(snapshot));
        Ok(ImageName { pool: pool.to_owned(), namespace, image: image.to_owned(), snapshot })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, "@{snapshot}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_printed_as_it_was_read() {
        for text in ["p/i", "p/n/i", "p/i@s", "p/n/i@s", "rbd/vm-1.disk_0"] {
            assert_eq!(text.parse::<ImageName>().map(|name| name.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn the_parts_of_a_name_are_where_they_belong() {
        let name: ImageName = "p/n/i@s".parse().unwrap();
        let parts = (name.namespace.as_deref(), name.snapshot.as_deref());
        assert_eq!((name.pool.as_str(), name.image.as_str()), ("p", "i"));
        assert_eq!(parts, (Some("n"), Some("s")));
    }

    #[test]
    fn text_that_names_no_image_is_refused() {
        for text in ["", "i", "/i", "p/", "p//i", "p/n/i/x", "p/i@", "p/i@a@b", "p/i@a/b", "p/\0"] {
            assert_eq!(text.parse::<ImageName>(), Err(()), "{text:?}");
        }
    }
}
