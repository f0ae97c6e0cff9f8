//! The content of the Secret of a managed certificate, and the next step of its rotation *(no client)*.
//!
//! Each certificate has its own authority, whose key is thrown away, so that later no one can sign with it. The rotation has
//! these steps, so no request fails while one certificate replaces another:
//!
//! ```text
//! use ─► two thirds of its life are over ─► prepare: the next pair lies in the Secret, and the API server trusts both
//!  ▲                                                                          authorities │
//!  └──── promote: all replicas show the next pair; both authorities stay trusted ◄────────┘ that lasted for a while
//! ```

use std::{collections::BTreeMap, iter, time::Duration};

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

/// The annotation with the SHA-256 of the certificate that was written here. Another program that writes a certificate may leave the
/// annotation, so the hash must match. It is empty in a blank Secret.
pub const FINGERPRINT: &str = "peerpods.confidentialcontainers.org/certificate-sha256";

/// The annotation with the names in the certificate, separated by commas.
const NAMES: &str = "peerpods.confidentialcontainers.org/names";

/// The least clock skew that a certificate allows for.
const LEAST_CLOCK_SKEW: Duration = Duration::from_secs(300);

/// The wanted properties of a managed certificate.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// DNS names and addresses by which API servers may reach the webhook.
    pub names: Vec<String>,
    /// How long a certificate is valid.
    pub lifetime: Duration,
}

impl Wanted {
    /// How long both authorities must have been trusted before the next certificate is served, so that every API server has
    /// learnt them.
    pub(super) fn settling(&self) -> Duration {
        (self.lifetime / 20).min(Duration::from_secs(60))
    }

    /// How far the clocks of API servers, and of other replicas, may be behind. With more than this part of the lifetime, a
    /// certificate could be overdue before its successor is served.
    fn clock_skew(&self) -> Duration {
        (self.lifetime / 8).max(LEAST_CLOCK_SKEW)
    }

    /// When two thirds of a certificate's lifetime are over, if it expires then.
    fn renewal(&self, expires: Timestamp) -> Timestamp {
        expires.saturating_sub(signed(self.lifetime / 3)).unwrap_or(expires)
    }
}

/// A certificate with its private key, in PEM. Its authority is valid for the same time.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    certificate: ByteString,
    key: ByteString,
    begins: Timestamp,
    expires: Timestamp,
}

/// The content of a managed Secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ManagedSecret {
    current: Pair,
    next: Option<Pair>,
    /// Certificates in PEM: of the current pair's authority, and of the next one's or the one before.
    authorities: Vec<String>,
    /// The names in the newest pair's certificate.
    names: String,
}

/// The next step for the Secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing until this moment.
    Wait(Timestamp),
    /// Nothing until the authorities have been trusted for long enough, or until this moment, when the certificate in use expires.
    Settle(Timestamp),
    /// Write this content.
    Write(ManagedSecret),
}

/// Why no certificate can be created.
#[derive(Debug, thiserror::Error)]
#[error("creating a certificate failed: {0}; check the names in it")]
pub struct IssueError(#[source] rcgen::Error);

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

    /// Whether the operator manages a Secret: it is [blank], its certificate was written here, or it was written here and is
    /// damaged.
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

    /// The Secret with this content, which replaces `before`.
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

    /// The next step for a managed Secret. `before`: its last content, if known. `settled`: all of its authorities have been trusted
    /// for long enough.
    pub(super) fn next_step(
        secret: &Secret,
        before: Option<&Self>,
        wanted: &Wanted,
        settled: bool,
        now: Timestamp,
    ) -> Result<Step, IssueError> {
        match (Self::read(secret), before) {
            // A deleted Secret requests another certificate. The served one stays trusted meanwhile.
            (None, Some(before)) if is_blank(secret) => Ok(Step::Write(before.prepared(wanted, now)?)),
            // The Secret is damaged: the last good content, which is still served, is restored.
            (None, Some(before)) => Ok(Step::Write(before.clone())),
            (managed, _) => Self::step(managed.as_ref(), wanted, settled, now),
        }
    }

    /// The next step for this content, or for none.
    fn step(
        managed: Option<&Self>,
        wanted: &Wanted,
        settled: bool,
        now: Timestamp,
    ) -> Result<Step, IssueError> {
        let usable = |managed: &&Self| {
            iter::once(&managed.current).chain(&managed.next).any(|pair| pair.is_valid(now))
        };
        let Some(managed) = managed.filter(usable) else {
            // No client accepts what the former authorities signed: it has expired, or a clock that was ahead made it.
            let (current, authority) = issue(wanted, now).map_err(IssueError)?;
            let names = wanted.names.join(",");
            return Ok(Step::Write(Self { current, next: None, authorities: vec![authority], names }));
        };
        if let Some(next) = managed.next.as_ref().filter(|next| next.is_valid(now)) {
            let promoted = Self { current: next.clone(), next: None, ..managed.clone() };
            // No client accepts a certificate outside its validity, so there is nothing to wait for.
            let due = settled || !managed.current.is_valid(now);
            return Ok(if due { Step::Write(promoted) } else { Step::Settle(managed.current.expires) });
        }
        let renewal = wanted.renewal(managed.current.expires);
        if managed.next.is_none() && now < renewal && managed.names == wanted.names.join(",") {
            return Ok(Step::Wait(renewal));
        }
        Ok(Step::Write(managed.prepared(wanted, now)?))
    }

    /// This content with a new next pair. A former next pair was never served and is dropped.
    fn prepared(&self, wanted: &Wanted, now: Timestamp) -> Result<Self, IssueError> {
        let (next, authority) = issue(wanted, now).map_err(IssueError)?;
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
        let (begins, expires) = facts::validity(&certificate.0)?;
        Some(Self { certificate: certificate.clone(), key: key.clone(), begins, expires })
    }

    fn is_valid(&self, now: Timestamp) -> bool {
        self.begins <= now && now < self.expires
    }

    /// The authority that signed it.
    fn authority<'a>(&self, authorities: &'a [String]) -> Option<&'a String> {
        authorities.iter().find(|authority| facts::is_signed_by(&self.certificate.0, authority.as_bytes()))
    }
}

/// A blank Secret of this name, which the webhook fills. A Secret of its type must have these keys.
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

fn signed(time: Duration) -> SignedDuration {
    SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX)
}

/// A new pair, and its authority's certificate.
fn issue(wanted: &Wanted, now: Timestamp) -> Result<(Pair, String), rcgen::Error> {
    // Times in certificates are whole seconds.
    let whole = |at: Timestamp| Timestamp::from_second(at.as_second()).unwrap_or(at);
    let begins = whole(now.saturating_sub(signed(wanted.clock_skew())).unwrap_or(now));
    let expires = whole(now.saturating_add(signed(wanted.lifetime)).unwrap_or(Timestamp::MAX));
    let moment = |at: Timestamp| {
        let since_1970 = u64::try_from(at.as_second()).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(since_1970)
    };
    let valid = |params: &mut CertificateParams| {
        params.not_before = moment(begins);
        params.not_after = moment(expires);
    };

    let mut authority = CertificateParams::default();
    // The identifiers of their keys distinguish two authorities of one name.
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
    Ok((Pair { certificate: pem(certificate), key: pem(key.serialize_pem()), begins, expires }, trusted))
}

#[cfg(test)]
mod tests;
