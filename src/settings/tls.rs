//! The versions of TLS and the ciphers that the webhook accepts, by their names in Go and Kubernetes.

use std::sync::Arc;

use tokio_rustls::rustls::{
    self, CipherSuite, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    server::ResolvesServerCert,
    version::{TLS12, TLS13},
};

/// Ciphers of TLS 1.2 by Go's names.
const CIPHERS: [(&str, CipherSuite); 8] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Ciphers of TLS 1.3, which are always accepted, as in Go.
const TLS13_CIPHERS: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The oldest version by Go's names, if it is not the default.
const TLS13_ALONE: &str = "VersionTLS13";

/// The TLS versions and ciphers that the webhook accepts. By default all that are safe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    tls13_alone: bool,
    /// The ciphers of TLS 1.2, by their numbers; empty: all.
    ciphers: Vec<CipherSuite>,
}

/// Why options for TLS cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The version has another name, or is too old.
    #[error("TLS_MIN_VERSION is {0:?}: set it to VersionTLS12 or VersionTLS13; older versions are not safe")]
    Version(String),
    /// No cipher has this name, or it is not safe.
    #[error("TLS_CIPHER_SUITES contains {name:?}, which is unknown or not safe: choose from {}", names())]
    Cipher {
        /// The name.
        name: String,
    },
    /// Ciphers of TLS 1.2 are named although that version is excluded.
    #[error("TLS_CIPHER_SUITES has no effect with TLS_MIN_VERSION=VersionTLS13: remove one of the two")]
    CiphersOfTls13,
    /// rustls refuses them.
    #[error("TLS cannot be set up: {0}")]
    Refused(String),
}

fn names() -> String {
    CIPHERS.map(|(name, _)| name).join(", ")
}

impl TlsOptions {
    /// Reads the values of `TLS_MIN_VERSION` (empty: 1.2) and `TLS_CIPHER_SUITES` (separated by commas; empty: all).
    pub fn parse(min_version: &str, cipher_suites: &str) -> Result<Self, TlsError> {
        let tls13_alone = match min_version.trim() {
            "" | "VersionTLS12" => false,
            TLS13_ALONE => true,
            other => return Err(TlsError::Version(other.to_owned())),
        };
        let named: Vec<_> = cipher_suites.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if tls13_alone && !named.is_empty() {
            return Err(TlsError::CiphersOfTls13);
        }
        let mut ciphers = Vec::new();
        for name in named.iter().filter(|name| !TLS13_CIPHERS.contains(name)) {
            let found = CIPHERS.iter().find(|(known, _)| known == name);
            let (_, cipher) = found.ok_or_else(|| TlsError::Cipher { name: (*name).to_owned() })?;
            ciphers.push(*cipher);
        }
        ciphers.sort_by_key(|cipher| u16::from(*cipher));
        ciphers.dedup();
        // Those of TLS 1.3 alone leave none for 1.2.
        Ok(Self { tls13_alone: tls13_alone || (ciphers.is_empty() && !named.is_empty()), ciphers })
    }

    /// The values of `TLS_MIN_VERSION` and `TLS_CIPHER_SUITES` for these options, each empty if it is the default.
    pub fn values(&self) -> [String; 2] {
        let min_version = if self.tls13_alone { TLS13_ALONE } else { "" };
        let name = |cipher| CIPHERS.iter().find(|(_, known)| known == cipher).map(|(name, _)| *name);
        let ciphers: Vec<_> = self.ciphers.iter().filter_map(name).collect();
        [min_version.to_owned(), ciphers.join(",")]
    }

    /// rustls' configuration of a server that speaks HTTP/1.1, with certificates from `certificates`.
    pub fn server_config(&self, certificates: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, TlsError> {
        let mut provider: CryptoProvider = ring::default_provider();
        let versions: &[&'static SupportedProtocolVersion] =
            if self.tls13_alone { &[&TLS13] } else { &[&TLS13, &TLS12] };
        if !self.ciphers.is_empty() {
            let chosen = |suite: &rustls::SupportedCipherSuite| {
                suite.tls13().is_some() || self.ciphers.contains(&suite.suite())
            };
            provider.cipher_suites.retain(chosen);
        }
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .map_err(|problem| TlsError::Refused(problem.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_ciphers_are_read_by_gos_names() {
        let all = TlsOptions::default();
        assert_eq!(TlsOptions::parse("", " , "), Ok(all.clone()));
        assert_eq!(TlsOptions::parse(" VersionTLS12 ", ""), Ok(all));
        assert!(TlsOptions::parse("VersionTLS13", "").unwrap().tls13_alone);
        let some =
            TlsOptions::parse("", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256").unwrap();
        assert_eq!(some.ciphers, [CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]);
        assert!(TlsOptions::parse("", "TLS_AES_128_GCM_SHA256").unwrap().tls13_alone);
    }

    #[test]
    fn tls_options_are_written_in_one_canonical_form() {
        let values = |version, ciphers: &str| {
            let options = TlsOptions::parse(version, ciphers).unwrap();
            let values = options.values();
            assert_eq!(TlsOptions::parse(&values[0], &values[1]).as_ref(), Ok(&options));
            values
        };
        assert_eq!(values("VersionTLS12", ""), ["", ""]);
        assert_eq!(values("VersionTLS13", ""), ["VersionTLS13", ""]);
        assert_eq!(values("", "TLS_AES_128_GCM_SHA256"), ["VersionTLS13", ""]);
        for (name, _) in CIPHERS {
            assert!(name.starts_with(&values("", name)[1]), "{name}");
        }
        let two = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 , TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,\
                   TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";
        let expected = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";
        assert_eq!(values("", two), ["", expected]);
    }

    #[test]
    fn unusable_tls_options_are_refused_with_advice() {
        for (version, ciphers, words) in [
            ("VersionTLS11", "", "VersionTLS12 or VersionTLS13"),
            ("1.2", "", "VersionTLS12 or VersionTLS13"),
            ("", "TLS_RSA_WITH_AES_128_CBC_SHA", "choose from TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "),
            ("VersionTLS13", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "no effect"),
        ] {
            let problem = TlsOptions::parse(version, ciphers).unwrap_err().to_string();
            assert!(problem.contains(words), "{problem}");
        }
    }
}
