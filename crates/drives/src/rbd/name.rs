//! `ImageName`: an image of a Ceph cluster as people write it: `pool/image`,
//! `pool/namespace/image`, each perhaps with `@snapshot`.
//!
//! Pure text; whether there is such an image only the cluster knows. Called by `crate::open` and
//! for every message about an image. The words are those of the `rbd` program.

use std::fmt;
use std::str::FromStr;

/// The name of an image, or of a snapshot of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageName {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; none for the pool's own.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The snapshot; none for the image itself.
    pub snapshot: Option<String>,
}

/// What an image's name looks like, for messages.
pub(crate) const FORM: &str =
    "write pool/image or pool/namespace/image, perhaps with @snapshot behind it";

impl FromStr for ImageName {
    /// Nothing more than its form is to be said.
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
