module peers/vsphere

go 1.26

require (
	github.com/google/uuid v1.6.0
	github.com/vmware/govmomi v0.53.1
	peers/control v0.0.0
)

replace peers/control => ../control
