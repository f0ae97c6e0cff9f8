module peers/control

go 1.26
