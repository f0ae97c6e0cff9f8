//! What the Secret of a managed certificate holds, and what is to be done with it *(no client)*.
//!
//! Each certificate has an authority of its own, whose key is thrown away: nothing can be signed by it later. So that no
//! request fails while one certificate takes the place of another:
//!
//! ```text
//! use ─► two thirds of its life are over ─► prepare: the next pair lies in the Secret, and the API server trusts both
//!  ▲                                                                          authorities │
//!  └──── promote: all replicas show the next pair; both authorities stay trusted ◄────────┘ that lasted for a while
//! ```

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::{Serving, facts};

/// The keys of a Secret of type `kubernetes.io/tls`, the authorities to trust, and the pair that comes next.
pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
pub(super) const AUTHORITIES: &str = "ca.crt";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";

/// Says that the certificate was written here: its SHA-256. Whoever writes another one may well leave the annotation. Empty
/// in a Secret that is to be filled here.
pub const FINGERPRINT: &str = "peerpods.confidentialcontainers.org/certificate-sha256";

/// Says for which names its certificate is good, with commas between.
const NAMES: &str = "peerpods.confidentialcontainers.org/names";

/// Clocks of API servers may be late by this.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// What a managed certificate is to be like.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// DNS names and addresses that the API server may reach the webhook by.
    pub names: Vec<String>,
    /// How long a certificate is good.
    pub lifetime: Duration,
}

impl Wanted {
    /// How long both authorities must have been trusted before the next certificate is shown: every API server has to hear
    /// of it.
    pub(super) fn settling(&self) -> Duration {
        (self.lifetime / 20).min(Duration::from_secs(60))
    }

    /// When two thirds of the life of a certificate are over that expires then.
    fn renewal(&self, expires: Timestamp) -> Timestamp {
        expires
            .saturating_sub(SignedDuration::try_from(self.lifetime / 3).unwrap_or(SignedDuration::MAX))
            .unwrap_or(expires)
    }
}

/// A certificate with its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    certificate: ByteString,
    key: ByteString,
    expires: Timestamp,
}

/// What a managed Secret holds.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ManagedSecret {
    current: Pair,
    next: Option<Pair>,
    /// Certificates in PEM: of the current pair's authority, and of the next one's or the one before.
    authorities: Vec<String>,
    /// Those of the newest pair.
    names: String,
}

/// What is to be done about the Secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing until this moment.
    Wait(Timestamp),
    /// Nothing until the authorities have been trusted for long enough.
    Settle,
    /// It is to hold this.
    Write(ManagedSecret),
}

/// Why no certificate can be made.
#[derive(Debug, thiserror::Error)]
#[error("creating a certificate failed: {0}; check the names in it")]
pub struct IssueError(#[from] rcgen::Error);

impl ManagedSecret {
    /// Reads a Secret. `None` if it is not managed here, or not as it was written.
    pub(super) fn read(secret: &Secret) -> Option<Self> {
        let data = |key| secret.data.as_ref()?.get(key);
        let authorities = String::from_utf8(data(AUTHORITIES)?.0.clone()).ok()?;
        let authorities: Vec<_> = authorities
            .split_inclusive("-----END CERTIFICATE-----\n")
            .map(str::to_owned)
            .filter(|text| !text.trim().is_empty())
            .collect();
        let pair = |certificate, key| {
            let pair = Pair::read(data(certificate)?, data(key)?)?;
            pair.authority(&authorities).is_some().then_some(pair)
        };
        let (current, next) = (pair(CERTIFICATE, KEY)?, pair(NEXT_CERTIFICATE, NEXT_KEY));
        Some(Self { current, next, authorities, names: annotation(secret, NAMES)?.clone() })
    }

    /// Whether a Secret is managed here: it is [to be filled](blank), the certificate in it was written here, or it was, and
    /// somebody broke it.
    pub(crate) fn is_ours(secret: &Secret) -> bool {
        let data = |key| secret.data.as_ref()?.get(key);
        annotation(secret, FINGERPRINT).is_some_and(|written| {
            let (certificate, key) = (data(CERTIFICATE), data(KEY));
            let unchanged =
                certificate.is_some_and(|certificate| facts::fingerprint(&certificate.0) == *written);
            unchanged
                || certificate.zip(key).and_then(|(certificate, key)| Pair::read(certificate, key)).is_none()
        })
    }

    /// The Secret that holds this; it replaces `before`.
    pub(super) fn secret(&self, before: &Secret) -> Secret {
        let mut data: BTreeMap<_, _> = [
            (CERTIFICATE, self.current.certificate.clone()),
            (KEY, self.current.key.clone()),
            (AUTHORITIES, ByteString(self.authorities.concat().into_bytes())),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        if let Some(Pair { certificate, key, .. }) = self.next.clone() {
            data.extend([(NEXT_CERTIFICATE.to_owned(), certificate), (NEXT_KEY.to_owned(), key)]);
        }
        let mut metadata = ObjectMeta { managed_fields: None, ..before.metadata.clone() };
        metadata.annotations.get_or_insert_default().extend([
            (FINGERPRINT.to_owned(), facts::fingerprint(&self.current.certificate.0)),
            (NAMES.to_owned(), self.names.clone()),
        ]);
        Secret { metadata, data: Some(data), type_: before.type_.clone(), ..Secret::default() }
    }

    /// What to do about a Secret that is managed here. `before`: what it held last, if that is known. `settled`: all of its
    /// authorities have been trusted for long enough.
    pub(super) fn next_step(
        secret: &Secret,
        before: Option<&Self>,
        wanted: &Wanted,
        settled: bool,
        now: Timestamp,
    ) -> Result<Step, IssueError> {
        match (Self::read(secret), before) {
            // Whoever deletes it wants another one; what is shown stays trusted meanwhile.
            (None, Some(before)) if is_blank(secret) => Ok(Step::Write(before.prepared(wanted, now)?)),
            // Somebody broke it: what is shown is still the last good one, and is put back.
            (None, Some(before)) => Ok(Step::Write(before.clone())),
            (managed, _) => Self::step(managed.as_ref(), wanted, settled, now),
        }
    }

    /// What to do about this, or if there is nothing.
    fn step(
        managed: Option<&Self>,
        wanted: &Wanted,
        settled: bool,
        now: Timestamp,
    ) -> Result<Step, IssueError> {
        let good = |managed: &&Self| now < managed.next.as_ref().unwrap_or(&managed.current).expires;
        let Some(managed) = managed.filter(good) else {
            // What was trusted before is past its time.
            let (current, authority) = issue(wanted, now)?;
            let names = wanted.names.join(",");
            return Ok(Step::Write(Self { current, next: None, authorities: vec![authority], names }));
        };
        if let Some(next) = &managed.next {
            let promoted = Self { current: next.clone(), next: None, ..managed.clone() };
            // Nobody takes what has expired, so there is nothing to wait for.
            let due = settled || managed.current.expires <= now;
            return Ok(if due { Step::Write(promoted) } else { Step::Settle });
        }
        let renewal = wanted.renewal(managed.current.expires);
        if now < renewal && managed.names == wanted.names.join(",") {
            return Ok(Step::Wait(renewal));
        }
        Ok(Step::Write(managed.prepared(wanted, now)?))
    }

    /// This with another pair to come next. A pair that was to come before was never shown, and is forgotten.
    fn prepared(&self, wanted: &Wanted, now: Timestamp) -> Result<Self, IssueError> {
        let (next, authority) = issue(wanted, now)?;
        let in_use = self.current.authority(&self.authorities).cloned();
        let authorities = in_use.into_iter().chain([authority]).collect();
        Ok(Self {
            current: self.current.clone(),
            next: Some(next),
            authorities,
            names: wanted.names.join(","),
        })
    }
}

impl Pair {
    /// `None` if the two cannot be used together.
    fn read(certificate: &ByteString, key: &ByteString) -> Option<Self> {
        Serving::default().show(&certificate.0, &key.0).ok()?;
        let expires = facts::expiry(&certificate.0)?;
        Some(Self { certificate: certificate.clone(), key: key.clone(), expires })
    }

    /// The one of the authorities that signed it.
    fn authority<'a>(&self, authorities: &'a [String]) -> Option<&'a String> {
        authorities.iter().find(|authority| facts::is_signed_by(&self.certificate.0, authority.as_bytes()))
    }
}

/// A Secret of this name that says that it is to be filled here. One of its type must have these keys.
pub fn blank(name: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some([(FINGERPRINT.to_owned(), String::new())].into()),
            ..ObjectMeta::default()
        },
        data: Some([CERTIFICATE, KEY].map(|key| (key.to_owned(), ByteString::default())).into()),
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    }
}

/// Whether a Secret has neither certificate nor private key.
pub(super) fn is_blank(secret: &Secret) -> bool {
    let data = |key| secret.data.as_ref().and_then(|data| data.get(key));
    [CERTIFICATE, KEY].into_iter().all(|key| data(key).is_none_or(|data| data.0.is_empty()))
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a String> {
    secret.metadata.annotations.as_ref()?.get(key)
}

/// A new pair, and its authority's certificate.
fn issue(wanted: &Wanted, now: Timestamp) -> Result<(Pair, String), IssueError> {
    let since_1970 = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or_default());
    let moment = |at: Duration| date_time_ymd(1970, 1, 1) + at;
    let lifetime = SignedDuration::try_from(wanted.lifetime).unwrap_or(SignedDuration::MAX);
    let expires = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
    // Certificates know whole seconds.
    let expires = Timestamp::from_second(expires.as_second()).unwrap_or(expires);
    let valid = |params: &mut CertificateParams| {
        params.not_before = moment(since_1970(now).saturating_sub(CLOCK_SKEW));
        params.not_after = moment(since_1970(expires));
    };

    let mut authority = CertificateParams::default();
    // Two authorities of one name are told apart by their keys' identifiers.
    authority
        .distinguished_name
        .push(DnType::CommonName, format!("peerpod-operator webhook {}", now.as_millisecond()));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    valid(&mut authority);
    let authority_key = KeyPair::generate()?;
    let trusted = authority.self_signed(&authority_key)?.pem();

    let mut server = CertificateParams::new(wanted.names.clone())?;
    server.distinguished_name.push(DnType::CommonName, "peerpod-operator webhook");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    valid(&mut server);
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &Issuer::new(authority, authority_key))?.pem();
    let pem = |text: String| ByteString(text.into_bytes());
    Ok((Pair { certificate: pem(certificate), key: pem(key.serialize_pem()), expires }, trusted))
}

#[cfg(test)]
mod tests;
