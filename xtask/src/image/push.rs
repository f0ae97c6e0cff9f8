//! Pushes an image to a registry, by the distribution protocol of the OCI.

use std::{env, fs::File, path::PathBuf, time::Duration};

use ::image::{MANIFEST, Packed};
use anyhow::{Context as _, Error, Result, bail, ensure};
use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use oci_client::{
    Client, Reference, RegistryOperation,
    client::{ClientConfig, ClientProtocol},
    errors::OciDistributionError,
    secrets::RegistryAuth,
};
use tokio_rustls::rustls::crypto::ring;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence of the registry. A request has 4 MiB at most.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The reference of the image `NAME:TAG` in a registry, which is given as `REGISTRY[/NAME]`.
pub(super) fn reference(destination: &str, image: &str) -> Result<Reference> {
    let (name, tag) = image.rsplit_once(':').with_context(|| format!("the image {image} has no tag"))?;
    let (registry, name) = destination.split_once('/').unwrap_or((destination, name));
    let reference = format!("{registry}/{name}:{tag}");
    let reference: Reference =
        reference.parse().with_context(|| format!("{reference} is no name of an image"))?;
    // If the first part is no host, it is part of a name in Docker's own registry.
    ensure!(
        reference.registry() == registry,
        "{registry} is no registry: it needs a dot, a port, or is `localhost`"
    );
    Ok(reference)
}

/// Pushes the image, and then asks the registry for it as a check.
pub(super) async fn push(packed: &Packed, reference: &Reference, plain_http: bool) -> Result<()> {
    let registry = reference.registry();
    // The crypto provider of the process. A second install has no effect.
    let _ = ring::default_provider().install_default();
    let client = Client::try_from(ClientConfig {
        protocol: if plain_http { ClientProtocol::Http } else { ClientProtocol::Https },
        connect_timeout: Some(CONNECT_TIMEOUT),
        read_timeout: Some(READ_TIMEOUT),
        ..ClientConfig::default()
    })?;
    let credentials = credentials(registry)?;
    let pushed = async {
        client.auth(reference, &credentials, RegistryOperation::Push).await?;
        for blob in &packed.blobs {
            client.push_blob(reference, blob.content.clone(), &blob.digest).await?;
        }
        let media_type = MANIFEST
            .parse()
            .map_err(|_| OciDistributionError::UnsupportedMediaTypeError(MANIFEST.to_owned()))?;
        client.push_manifest_raw(reference, packed.manifest.content.clone(), media_type).await?;
        client.fetch_manifest_digest(reference, &credentials).await
    };
    let digest = pushed.await.map_err(|error| explain(error, registry, &credentials))?;
    ensure!(
        digest == packed.manifest.digest,
        "{registry} has {digest} as {reference}: another process pushed the same tag"
    );
    Ok(())
}

/// The credentials that `docker login` wrote for a registry.
fn credentials(registry: &str) -> Result<RegistryAuth> {
    let folder = env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".docker")));
    let Some(path) = folder.map(|folder| folder.join("config.json")).filter(|path| path.exists()) else {
        return Ok(RegistryAuth::Anonymous);
    };
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    // Docker's own registry has a special name in this file.
    let server = if registry == "docker.io" { "https://index.docker.io/v1/" } else { registry };
    match get_credential_from_reader(file, server) {
        Ok(DockerCredential::UsernamePassword(user, password)) => Ok(RegistryAuth::Basic(user, password)),
        Ok(DockerCredential::IdentityToken(_)) => {
            bail!(
                "{} has an identity token for {registry}: log in with a user and a password",
                path.display()
            )
        }
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(RegistryAuth::Anonymous),
        Err(error) => Err(error)
            .with_context(|| format!("reading the credentials for {registry} of {}", path.display())),
    }
}

/// The error, with advice on what to do about it.
fn explain(error: OciDistributionError, registry: &str, credentials: &RegistryAuth) -> Error {
    let refused = matches!(
        error,
        OciDistributionError::UnauthorizedError { .. }
            | OciDistributionError::AuthenticationFailure(_)
            | OciDistributionError::ServerError { code: 401, .. }
    );
    let what = match (refused, credentials) {
        (true, RegistryAuth::Anonymous) => {
            format!("{registry} asks for credentials, and there are none: run `docker login {registry}`")
        }
        (true, _) => format!("{registry} refuses the credentials: run `docker login {registry}` again"),
        (false, _) => format!("pushing to {registry} failed"),
    };
    Error::new(error).context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_the_registry_is_the_images_own_unless_it_is_given() -> Result<()> {
        let told = |destination| reference(destination, "operator:1").map(|it| it.to_string());
        assert_eq!(told("localhost:5000")?, "localhost:5000/operator:1");
        assert_eq!(told("registry.example.com/team/mine")?, "registry.example.com/team/mine:1");
        for wrong in ["team", "team/mine", "https://registry.example.com", "registry.example.com/Mine:2", ""]
        {
            assert!(told(wrong).is_err(), "{wrong}");
        }
        assert!(reference("localhost:5000", "operator").is_err(), "no tag");
        Ok(())
    }
}
