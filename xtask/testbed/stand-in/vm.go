package main

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
)

const pool = "default"

// VM is a domain of libvirt with its two volumes.
type VM struct {
	Name    string
	UUID    string
	PeerPod string
}

// volumes are those of a VM, in the shape that cloud-api-adaptor gives them.
func volumes(name string) []string {
	return []string{name + "-root.qcow2", name + "-cloudinit.iso"}
}

// connect reaches libvirtd at a URI such as test+tcp://HOST/default.
func connect(uri string) (*libvirt.Libvirt, error) {
	parsed, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	driver, _, _ := strings.Cut(parsed.Scheme, "+")
	connection := libvirt.NewWithDialer(dialers.NewRemote(parsed.Hostname()))
	if port := parsed.Port(); port != "" {
		connection = libvirt.NewWithDialer(dialers.NewRemote(parsed.Hostname(), dialers.UsePort(port)))
	}
	return connection, connection.ConnectToURI(libvirt.ConnectURI(driver + "://" + parsed.Path))
}

func makeVM(uri, name string) (VM, error) {
	connection, err := connect(uri)
	if err != nil {
		return VM{}, err
	}
	defer connection.Disconnect()
	in, err := connection.StoragePoolLookupByName(pool)
	if err != nil {
		return VM{}, err
	}
	var disks strings.Builder
	for index, volume := range volumes(name) {
		xml := fmt.Sprintf("<volume><name>%s</name><capacity unit='MiB'>1</capacity></volume>", volume)
		made, err := connection.StorageVolCreateXML(in, xml, 0)
		if err != nil {
			return VM{}, err
		}
		fmt.Fprintf(&disks, "<disk type='file' device='disk'><source file='%s'/><target dev='vd%c' bus='virtio'/></disk>",
			made.Key, 'a'+index)
	}
	domain, err := connection.DomainDefineXML(fmt.Sprintf(
		"<domain type='test'><name>%s</name><description>This Virtual Machine is the peer-pod VM</description>"+
			"<memory unit='MiB'>128</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>%s</devices></domain>",
		name, disks.String()))
	if err != nil {
		return VM{}, err
	}
	uuid := hex.EncodeToString(domain.UUID[:])
	uuid = strings.Join([]string{uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]}, "-")
	return VM{Name: name, UUID: uuid}, connection.DomainCreate(domain)
}

func (vm VM) remove(uri string) error {
	connection, err := connect(uri)
	if err != nil {
		return err
	}
	defer connection.Disconnect()
	domain, err := connection.DomainLookupByName(vm.Name)
	if err != nil {
		return err
	}
	if err := connection.DomainDestroy(domain); err != nil {
		return err
	}
	if err := connection.DomainUndefine(domain); err != nil {
		return err
	}
	in, err := connection.StoragePoolLookupByName(pool)
	if err != nil {
		return err
	}
	for _, name := range volumes(vm.Name) {
		volume, err := connection.StorageVolLookupByName(in, name)
		if err != nil {
			return err
		}
		if err := connection.StorageVolDelete(volume, 0); err != nil {
			return err
		}
	}
	return nil
}
