//! A daemon's listeners on the network, and the certificates of both sides.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, date_time_ymd,
};

/// The serial number of the server's certificate.
const SERVER_SERIAL: u64 = 4711;

/// The authentication of the tcp listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpAuth {
    /// Nothing.
    None,
    /// SASL, which is libvirtd's default.
    Sasl,
}

/// libvirtd's listeners: tcp at port 16509 and tls at 16514.
///
/// The tls listener accepts clients with a certificate of its authority.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The address, which the server's certificate names.
    pub address: Ipv4Addr,
    /// A folder for `?pkipath=`: `cacert.pem`, `clientcert.pem` and `clientkey.pem`.
    pub pki: PathBuf,
    /// The same with a `cacrl.pem`, in which the authority revokes the server's certificate.
    pub revoking: PathBuf,
}

impl Listener {
    /// Makes the server's and a client's certificates in `dir`. Also returns the configuration.
    pub(super) fn prepare(dir: &Path, auth: TcpAuth, address: Ipv4Addr) -> Result<(Self, String)> {
        let [pki, revoking, server] = ["pki", "pki-revoking", "pki-server"].map(|name| dir.join(name));
        let authority = Authority::new()?;
        authority.client(&pki)?;
        authority.client(&revoking)?;
        fs::write(revoking.join("cacrl.pem"), authority.revoke(SERVER_SERIAL)?)?;
        let mut params = CertificateParams::new([address.to_string()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.serial_number = Some(SERVER_SERIAL.into());
        authority.issue(&server, "server", params)?;
        let auth = match auth {
            TcpAuth::None => "none",
            TcpAuth::Sasl => "sasl",
        };
        let server = server.display();
        let configuration = format!(
            "listen_tcp = 1\nlisten_tls = 1\nlisten_addr = \"{address}\"\nauth_tcp = \"{auth}\"\n\
             auth_tls = \"none\"\nca_file = \"{server}/cacert.pem\"\ncert_file = \"{server}/servercert.pem\"\n\
             key_file = \"{server}/serverkey.pem\"\n"
        );
        Ok((Self { address, pki, revoking }, configuration))
    }
}

/// Makes a folder for `?pkipath=`, from an authority that no daemon knows.
pub fn stranger(dir: &Path) -> Result<()> {
    Authority::new()?.client(dir)
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "libvirt test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.self_signed(&key)?.pem(), issuer: Issuer::new(params, key) })
    }

    /// A revocation list with the certificate of this number.
    fn revoke(&self, serial: u64) -> Result<String> {
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.pem()?)
    }

    fn client(&self, dir: &Path) -> Result<()> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(dir, "client", params)
    }

    /// Writes the authority's certificate, and a certificate and its key, under the names that libvirt expects.
    fn issue(&self, dir: &Path, role: &str, mut params: CertificateParams) -> Result<()> {
        params.distinguished_name.push(DnType::CommonName, role);
        // libvirt requires these usages of a certificate that has any.
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let files = [
            ("cacert.pem".to_owned(), &self.certificate),
            (format!("{role}cert.pem"), &certificate),
            (format!("{role}key.pem"), &key.serialize_pem()),
        ];
        for (name, text) in files {
            fs::write(dir.join(&name), text)
                .with_context(|| format!("writing {name} in {}", dir.display()))?;
        }
        Ok(())
    }
}
