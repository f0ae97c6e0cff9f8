//! The files of a TLS client, at the places that libvirt documents.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::error::Error;
use crate::uri::Tls;

/// The client's files, read anew for each connection, so that a renewed certificate is used at once.
pub(super) struct Credentials {
    /// The authorities; none if there is no such file.
    pub(super) authorities: Option<Vec<CertificateDer<'static>>>,
    pub(super) revoked: Vec<CertificateRevocationListDer<'static>>,
    /// A certificate and its key. Whether it needs one is up to the server.
    pub(super) client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// Where the authorities' certificate was looked for.
    pub(super) authority_file: PathBuf,
}

struct Files {
    authority: PathBuf,
    revoked: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    /// All files in one folder.
    fn within(folder: &Path) -> Self {
        Self {
            authority: folder.join("cacert.pem"),
            revoked: folder.join("cacrl.pem"),
            certificate: folder.join("clientcert.pem"),
            key: folder.join("clientkey.pem"),
        }
    }

    fn of_the_system() -> Self {
        let folder = Path::new("/etc/pki");
        Self {
            authority: folder.join("CA/cacert.pem"),
            revoked: folder.join("CA/cacrl.pem"),
            certificate: folder.join("libvirt/clientcert.pem"),
            key: folder.join("libvirt/private/clientkey.pem"),
        }
    }

    /// The system's files, except those that the user has.
    fn of_the_user(folder: &Path) -> Self {
        let (mut files, user) = (Self::of_the_system(), Self::within(folder));
        if user.authority.exists() {
            (files.authority, files.revoked) = (user.authority, user.revoked);
        }
        if user.certificate.exists() && user.key.exists() {
            (files.certificate, files.key) = (user.certificate, user.key);
        }
        files
    }
}

impl Credentials {
    pub(super) async fn load(tls: &Tls) -> Result<Self, Error> {
        let files = match (&tls.pki, env::home_dir()) {
            (Some(folder), _) => Files::within(folder),
            (None, Some(home)) => Files::of_the_user(&home.join(".pki/libvirt")),
            (None, None) => Files::of_the_system(),
        };
        let authorities = read(&files.authority).await?;
        let revoked = read(&files.revoked).await?.unwrap_or_default();
        let (certificate, key) = (read(&files.certificate).await?, read(&files.key).await?);
        let client = match (certificate, key.and_then(|mut keys: Vec<_>| keys.pop())) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) if tls.pki.is_none() => None,
            (certificate, _) => {
                let missing = if certificate.is_some() { files.key } else { files.certificate };
                return Err(Error::Auth(format!("there is no {}", missing.display())));
            }
        };
        Ok(Self { authorities, revoked, client, authority_file: files.authority })
    }
}

/// The content of a PEM file; `None` if there is no such file.
async fn read<T: PemObject>(path: &Path) -> Result<Option<Vec<T>>, Error> {
    let unusable = |problem: String| Error::Auth(format!("cannot read {}: {problem}", path.display()));
    let text = match tokio::fs::read(path).await {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let items: Vec<T> =
        T::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|error| unusable(error.to_string()))?;
    if items.is_empty() {
        return Err(unusable("it holds nothing of the kind that belongs there, as PEM".to_owned()));
    }
    Ok(Some(items))
}
