//! What libvirt's capabilities XML says of the host.

use uuid::Uuid;

/// The host's UUID, from libvirt's capabilities XML.
pub(crate) fn host_uuid(capabilities: &str) -> Option<Uuid> {
    let (_, host) = capabilities.split_once("<host>")?;
    let (host, _) = host.split_once("</host>")?;
    let (_, uuid) = host.split_once("<uuid>")?;
    let (uuid, _) = uuid.split_once("</uuid>")?;
    Uuid::try_parse(uuid.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuid_of_a_host_is_found_where_there_is_one() {
        let uuid = "4c4c4544-0047-3010-8051-b6c04f565032";
        let qemu = format!(
            "<capabilities>\n  <host>\n    <uuid>{uuid}</uuid>\n    <cpu/></host><guest/></capabilities>"
        );
        assert_eq!(host_uuid(&qemu), Some(uuid.parse().unwrap()));
        for without in [
            "<capabilities><host><cpu/></host></capabilities>".to_owned(),
            format!("<capabilities><host/><guest><uuid>{uuid}</uuid></guest></capabilities>"),
            "<capabilities><host><uuid>none</uuid></host></capabilities>".to_owned(),
            "<host><uuid>".to_owned(),
            String::new(),
        ] {
            assert_eq!(host_uuid(&without), None, "{without}");
        }
    }
}
