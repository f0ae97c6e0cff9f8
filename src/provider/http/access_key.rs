//! Access keys, as clouds with signed requests have them.

use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::Fresh;

/// An access key.
#[derive(Clone, Debug)]
pub(in crate::provider) struct AccessKey {
    /// Its identifier.
    pub id: SecretString,
    /// What signs.
    pub secret: SecretString,
    /// Of a temporary key.
    pub token: Option<SecretString>,
}

/// A key that lasts.
impl From<AccessKey> for Fresh<AccessKey> {
    fn from(value: AccessKey) -> Self {
        Self { value, expires: Timestamp::MAX }
    }
}

/// A temporary access key as token services, metadata and agents give it in JSON.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::provider) struct TemporaryKey {
    access_key_id: SecretString,
    #[serde(alias = "AccessKeySecret")]
    secret_access_key: SecretString,
    #[serde(alias = "SecurityToken")]
    token: SecretString,
    expiration: Timestamp,
}

impl From<TemporaryKey> for Fresh<AccessKey> {
    fn from(key: TemporaryKey) -> Self {
        let token = Some(key.token).filter(|token| !token.expose_secret().is_empty());
        let value = AccessKey { id: key.access_key_id, secret: key.secret_access_key, token };
        Self { value, expires: key.expiration }
    }
}
