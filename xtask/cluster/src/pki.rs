//! The keys and certificates of one cluster, as files.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::folders::write_private;

/// The first address of the service range: the `kubernetes` Service in namespace `default`.
const KUBERNETES_SERVICE: &str = "10.96.0.1";
const SERVER_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The client certificates: file name, user, and a group for users that have no rights of their own.
const CLIENTS: [(&str, &str, Option<&str>); 6] = [
    ("admin", "kubernetes-admin", Some("system:masters")),
    ("controller-manager", "system:kube-controller-manager", None),
    ("scheduler", "system:kube-scheduler", None),
    // kwok acts for the kubelets of many nodes, and a kubelet's own rights would cover only one.
    ("kwok", "kwok", Some("system:masters")),
    ("kubelet", "system:node:node", Some("system:nodes")),
    ("kube-proxy", "system:kube-proxy", None),
];

/// The folder of a cluster's keys and certificates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pki<'a> {
    dir: &'a Path,
}

impl<'a> Pki<'a> {
    /// Only names the folder; [`create`](Self::create) fills it.
    pub(crate) fn at(dir: &'a Path) -> Self {
        Self { dir }
    }

    /// Makes an authority, the API server's certificate for `address`, the clients' certificates and the key that signs
    /// `ServiceAccount` tokens.
    pub(crate) fn create(self, address: Ipv4Addr) -> Result<()> {
        fs::create_dir_all(self.dir).with_context(|| format!("creating {}", self.dir.display()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "peerpod-operator test cluster");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        write_private(&self.ca(), &params.self_signed(&key)?.pem())?;
        let authority = Issuer::new(params, key);

        let mut names: Vec<_> = SERVER_NAMES.map(str::to_owned).into();
        names.extend([KUBERNETES_SERVICE.to_owned(), address.to_string()]);
        let mut server = CertificateParams::new(names)?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue("api-server", server, &authority)?;

        for (name, user, group) in CLIENTS {
            let mut client = CertificateParams::default();
            client.distinguished_name.push(DnType::CommonName, user);
            if let Some(group) = group {
                client.distinguished_name.push(DnType::OrganizationName, group);
            }
            client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            self.issue(name, client, &authority)?;
        }

        let tokens = KeyPair::generate()?;
        write_private(&self.key("service-account"), &tokens.serialize_pem())?;
        write_private(&self.service_account_public_key(), &tokens.public_key_pem())
    }

    /// The authority's certificate.
    pub(crate) fn ca(self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The certificate of `api-server` or of a client.
    pub(crate) fn certificate(self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.crt"))
    }

    /// The private key of `api-server`, of a client, or of `service-account`.
    pub(crate) fn key(self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.key"))
    }

    /// The key that verifies `ServiceAccount` tokens.
    pub(crate) fn service_account_public_key(self) -> PathBuf {
        self.dir.join("service-account.pub")
    }

    fn issue(self, name: &str, mut params: CertificateParams, authority: &Issuer<'_, KeyPair>) -> Result<()> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        write_private(&self.certificate(name), &params.signed_by(&key, authority)?.pem())?;
        write_private(&self.key(name), &key.serialize_pem())
    }
}
